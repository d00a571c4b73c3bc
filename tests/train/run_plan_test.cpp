// SPDX-License-Identifier: Apache-2.0
// A run's account and price before it runs, the calibration that the price uses, and the search for
// settings that fit.
#include "train/run_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "base/text.h"
#include "device/topology.h"
#include "support/scoped_variable.h"
#include "support/tiny_run.h"
#include "train/calibration.h"
#include "train/evaluate.h"
#include "train/machine.h"
#include "train/memory_account.h"
#include "train/settings_search.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

using ::testing::HasSubstr;
using testing::ScopedVariable;
using testing::TemporaryDirectory;
using testing::tiny_run;

TEST(RunPlan, PlansWhatASessionThenAllocates) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), "\"vocab_size\": 20000");
  for (const char* precision : {"fp32", "bf16"}) {
    run.train.precision = precision;
    run.data.validation = {"some"};
    const model::ModelConfig config = model::load_config(run.model.path);
    const RunPlan planned =
        *plan_run(run, config, device::describe_cpu(2), plan::default_efficiency());
    const MemoryAccount account = account_memory(run, planned.training, &*planned.evaluation, 2, 0);

    ModelSession session(run, false);
    const auto training = bind_training(session);
    const auto evaluation = session.bind(evaluation_request(run));
    const auto arenas = [](const BoundProgram& program) { return program.executor->arena_bytes(); };
    const std::int64_t beside = account.bytes("batches") + account.bytes("staging") +
                                account.bytes("programs") + account.bytes("threads") +
                                account.bytes("metrics");
    const std::int64_t pages = account.peak_bytes - beside - session.store().allocated_bytes() -
                               arenas(*training) - arenas(*evaluation);
    EXPECT_GE(pages, 0) << precision;
    EXPECT_LT(pages, 2 * 4096) << precision;  // of the two programs' arenas
  }
}

TEST(RunPlan, CountsNothingTwice) {
  const TemporaryDirectory folder;
  const RunConfig run = tiny_run(folder.path());
  const RunPlan planned = *plan_run(run, model::load_config(run.model.path),
                                    device::describe_cpu(2), plan::default_efficiency());
  ASSERT_FALSE(planned.evaluation.has_value());
  const MemoryAccount account =
      account_memory(run, planned.training, nullptr, 2, std::int64_t{7} << 20);
  std::int64_t sum = 0;
  for (const MemoryRow& row : account.rows) sum += row.bytes;
  EXPECT_EQ(sum, account.peak_bytes);
  EXPECT_EQ(account.step.peak_bytes, planned.training.plan.peak_bytes());
  EXPECT_GT(account.bytes("code and libraries"), std::int64_t{7} << 20);
  EXPECT_EQ(account.bytes("validation"), 0);
  EXPECT_EQ(account.bytes("data and tokenizer"), 0);
  const MemoryAccount with_data = account_memory(run, planned.training, nullptr, 2,
                                                 std::int64_t{7} << 20, std::int64_t{2} << 20);
  EXPECT_EQ(with_data.peak_bytes, account.peak_bytes);
  EXPECT_EQ(with_data.bytes("data and tokenizer"), std::int64_t{2} << 20);
  EXPECT_THAT(to_string(account), HasSubstr("saved activations"));
  EXPECT_THAT(places_to_string(account.step), HasSubstr("layers.1"));
}

Calibration example() {
  Calibration calibration{.fp32_flops_per_second = 1e11,
                          .bf16_flops_per_second = 2e11,
                          .int8_ops_per_second = 4e11,
                          .copy_bytes_per_second = 3e10};
  calibration.efficiency.share_of_roof = {{"linear fp32", 0.875},
                                          {"optimizer_step adamw fp32", 0.5}};
  calibration.efficiency.fixed_seconds = {{"linear fp32", 0.0625}};
  calibration.efficiency.fixed_weight_bytes = {{"linear fp32", 4096}};
  return calibration;
}

TEST(Calibration, ComesBackFromItsFile) {
  const TemporaryDirectory folder;
  const auto file = folder.path() / "deep" / "calibration.json";
  const spec::DeviceSpec device = device::describe_cpu(2);
  write_calibration(file, example(), device);
  const Calibration read = read_calibration(file, device);
  EXPECT_EQ(read.efficiency.share_of_roof, example().efficiency.share_of_roof);
  EXPECT_EQ(read.efficiency.fixed_seconds, example().efficiency.fixed_seconds);
  EXPECT_EQ(read.efficiency.fixed_weight_bytes, example().efficiency.fixed_weight_bytes);
  EXPECT_EQ(read.source, "calibrated on this machine");
  const spec::DeviceSpec with_peaks = with_peaks_of(device, read);
  EXPECT_EQ(with_peaks.fp32_flops_per_second, 1e11);
  EXPECT_EQ(with_peaks.bf16_flops_per_second, 2e11);
  EXPECT_EQ(with_peaks.int8_ops_per_second, 4e11);
  EXPECT_EQ(with_peaks.copy_bytes_per_second, 3e10);
}

TEST(Calibration, FallsBackWithAReason) {
  const TemporaryDirectory folder;
  const auto file = folder.path() / "calibration.json";
  const spec::DeviceSpec device = device::describe_cpu(2);
  const auto reason = [&] {
    const Calibration read = read_calibration(file, device);
    EXPECT_TRUE(read.efficiency.share_of_roof.empty());
    EXPECT_EQ(read.fp32_flops_per_second, 0);
    return read.source;
  };
  EXPECT_THAT(reason(), HasSubstr("not calibrated"));
  EXPECT_THAT(read_calibration("", device).source, HasSubstr("not calibrated"));
  write_calibration(file, example(), device);
  const std::string good = read_file(file);
  for (const std::string& bad :
       {std::string("{"), std::string("[]"), std::string("\x00\xff", 2), good.substr(0, 40),
        std::string("{\"machine\": 5, \"shares\": {}}")}) {
    std::ofstream(file) << bad;
    EXPECT_THAT(reason(), HasSubstr("is no calibration")) << bad;
  }
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"0.875", "-1"},
           {"0.875", "\"x\""},
           {"0.875", "1e99"},
           {"0.875", "null"},
           {"0.0625", "-1"},
           {"0.0625", "11"},
           {"\"fixed_seconds\"", "\"other\""},
           {"4096", "-4096"},
           {"\"fixed_weight_bytes\"", "\"other\""},
           {"\"copy_bytes_per_second\"", "\"other\""}}) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    std::ofstream(file) << bad;
    EXPECT_THAT(reason(), HasSubstr("is no calibration")) << bad;
  }
  std::ofstream(file) << good;
  spec::DeviceSpec other = device;
  other.num_threads += 1;
  EXPECT_THAT(read_calibration(file, other).source, HasSubstr("of another machine"));
}

TEST(Calibration, OfTheWholeMachineIsSharedByItsRanks) {
  const TemporaryDirectory folder;
  const ScopedVariable cache("XDG_CACHE_HOME", folder.path());
  spec::DeviceSpec rank = device::describe_cpu(1), node = rank;
  node.num_threads = 2;
  EXPECT_THAT(priced_machine(rank, {}, 2).price_source, HasSubstr("not calibrated"));
  Calibration alone = example();
  alone.fp32_flops_per_second = 7e10;
  store_calibration(alone, rank);
  EXPECT_EQ(priced_machine(rank, {}, 2).device.fp32_flops_per_second, 7e10);
  store_calibration(example(), node);
  const Machine shared = priced_machine(rank, {}, 2);
  EXPECT_EQ(shared.device.num_threads, 1);
  EXPECT_EQ(shared.device.fp32_flops_per_second, 5e10);
  EXPECT_EQ(shared.device.bf16_flops_per_second, 1e11);
  EXPECT_EQ(shared.device.copy_bytes_per_second, 1.5e10);
  EXPECT_EQ(shared.efficiency.share_of_roof, example().efficiency.share_of_roof);
  EXPECT_EQ(shared.efficiency.fixed_seconds.at("linear fp32"), 0.125);
  EXPECT_EQ(shared.price_source, "calibrated on this machine, which 2 ranks share");
  EXPECT_EQ(priced_machine(rank).device.fp32_flops_per_second, 7e10);
}

// Memory grows with tokens and a square of the sequence; larger micro-batches are faster up to 24.
Trial trial_of(const Setting& setting, std::int64_t budget) {
  Trial trial{.setting = setting};
  trial.peak_bytes = 1000 + setting.micro_batch_size * setting.sequence_length * 10 +
                     setting.sequence_length * setting.sequence_length / 50;
  trial.fits = trial.peak_bytes <= budget;
  trial.tokens_per_second = 1000.0 - std::abs(static_cast<double>(setting.micro_batch_size) - 24);
  return trial;
}

TEST(SettingsSearch, FindsWhatCountingUpFinds) {
  const SettingsLimits limits{
      .micro_batch_size = 100, .sequence_length = 4096, .sequence_step = 64};
  for (const std::int64_t budget : {999, 6'000, 7'920, 40'000, 100'000, 345'678, 100'000'000})
    for (const Setting given : {Setting{4, 512}, Setting{1, 64}, Setting{100, 4096}}) {
      std::int64_t batch = 0, length = 0;
      for (std::int64_t n = 1; n <= 100; ++n)
        if (trial_of({n, given.sequence_length}, budget).fits) batch = n;
      for (std::int64_t n = 64; n <= 4096; n += 64)
        if (trial_of({given.micro_batch_size, n}, budget).fits) length = n;
      const SettingsFound found = search_settings(
          given, limits, [&](const Setting& setting) { return trial_of(setting, budget); });
      EXPECT_EQ(found.largest_micro_batch ? found.largest_micro_batch->setting.micro_batch_size : 0,
                batch)
          << budget;
      EXPECT_EQ(found.longest_sequence ? found.longest_sequence->setting.sequence_length : 0,
                length)
          << budget;
      EXPECT_EQ(found.fastest.has_value(), batch > 0);
      if (found.fastest) {
        EXPECT_LE(found.fastest->peak_bytes, budget);
        EXPECT_EQ(found.fastest->setting.micro_batch_size, std::min<std::int64_t>(batch, 24));
        EXPECT_EQ(found.fastest->setting.sequence_length, given.sequence_length);
      }
      EXPECT_LE(found.num_trials, 40);
    }
}

}  // namespace
}  // namespace anabatic::train
