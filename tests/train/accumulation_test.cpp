// SPDX-License-Identifier: Apache-2.0
// Which samples a step holds, and that loss and gradients do not depend on how it is cut into
// micro-batches.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "base/json.h"
#include "base/text.h"
#include "io/data/indexed_file.h"
#include "support/tiny_run.h"
#include "support/tolerance.h"
#include "train/open_dataset.h"
#include "train/trainer.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

using anabatic::testing::agreement_tolerance;
using anabatic::testing::parity_bounds;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;

std::vector<nlohmann::json> metrics_of(const RunConfig& run) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(read_file(std::filesystem::path(run.train.output) / "metrics.jsonl"));
  for (std::string line; std::getline(text, line);) lines.push_back(parse_json(line));
  return lines;
}

struct Gradients {
  double loss = 0, aux_loss = 0;
  std::map<std::string, std::vector<double>> values;  // by state
};

// Forward and backward over consecutive micro-batches of `size` of these samples.
Gradients gradients_of(const RunConfig& run, std::int64_t size, std::int64_t count,
                       double balance_coef) {
  ModelSession session(run, false);
  const io::Dataset dataset = open_dataset(run.data.train, run, session.config());
  const std::int64_t num_micro_batches = count / size;
  const auto program = session.bind(
      {.name = "gradients",
       .build = {.num_tokens = size * run.data.sequence_length, .balance_coef = balance_coef},
       .training = true,
       .with_update = false});
  session.load_parameters();
  session.refresh_derived();

  std::vector<io::MicroBatch> batches(static_cast<std::size_t>(num_micro_batches));
  io::SampleScratch scratch;
  std::int64_t next = 0, tokens = 0, real_tokens = 0, fewest = std::int64_t{1} << 60, most = 0;
  for (io::MicroBatch& batch : batches) {
    std::vector<std::int64_t> samples;
    for (std::int64_t i = 0; i < size; ++i) samples.push_back(next++);
    io::fill_micro_batch(dataset, samples, batch, scratch);
    tokens += batch.unmasked_tokens;
    real_tokens += batch.real_tokens;
    fewest = std::min(fewest, batch.unmasked_tokens);
    most = std::max(most, batch.unmasked_tokens);
  }
  // Equal counts would hide a mean of means.
  EXPECT_TRUE(num_micro_batches == 1 || fewest < most);

  Gradients result;
  set_loss_scales(*program, {tokens, real_tokens, 0, static_cast<double>(tokens)});
  for (const spec::StepEntry& entry : program->schedule(num_micro_batches)) {
    if (entry.action == spec::Action::kForward)
      program->set_batch(batches[static_cast<std::size_t>(entry.micro_batch)]);
    program->executor->run(entry);
    if (entry.action != spec::Action::kForward) continue;
    result.loss += program->scalar("loss");
    result.aux_loss += program->scalar("aux_loss");
  }
  for (const Name name : session.store().names()) {
    const std::string output = fmt::format("gradients.{}", text(name));
    if (!program->executor->has_output(output)) continue;
    const TensorView view = program->executor->output(output);
    const float* values = view.as<const float>();
    result.values[std::string(text(name))] = {values, values + view.type->num_elements()};
  }
  return result;
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

TEST(Accumulation, LossAndGradientsDoNotDependOnTheCut) {
  const TemporaryDirectory folder;
  const RunConfig run = tiny_run(folder.path());
  const Gradients whole = gradients_of(run, 4, 4, 0.0), cut = gradients_of(run, 1, 4, 0.0);
  const double bound = parity_bounds(2, 16, DType::kFloat32).gradient;
  EXPECT_LE(std::abs(cut.loss - whole.loss), bound * whole.loss);
  ASSERT_EQ(whole.values.size(), cut.values.size());
  ASSERT_GE(whole.values.size(), 20u);
  for (const auto& [state, want] : whole.values) {
    std::vector<double> difference = cut.values.at(state);
    for (std::size_t i = 0; i < want.size(); ++i) difference[i] -= want[i];
    EXPECT_GT(norm(want), 0) << state;
    EXPECT_LE(norm(difference), bound * norm(want)) << state;
  }
}

TEST(Accumulation, WeighsTheAuxiliaryLossByTheTokensOfMicroBatches) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.data.shuffle = false;
  run.train.steps = 1;
  run.train.micro_batch_size = 1;
  run.train.gradient_accumulation_steps = 4;
  Trainer(run).train();
  const Gradients cut = gradients_of(run, 1, 4, 0.01), whole = gradients_of(run, 4, 4, 0.01);
  const nlohmann::json line = metrics_of(run).at(0);
  EXPECT_EQ(line["loss"].get<double>(), cut.loss);
  EXPECT_EQ(line["aux_loss"].get<double>(), cut.aux_loss);
  // The loss of each micro-batch on its own: routing differs between them, so one over all differs.
  EXPECT_GT(std::abs(whole.aux_loss - cut.aux_loss), agreement_tolerance(2.0, DType::kFloat32));
  double sum = 0;
  for (const auto& [state, values] : cut.values) sum += norm(values) * norm(values);
  EXPECT_LE(std::abs(line["grad_norm"].get<double>() - std::sqrt(sum)),
            agreement_tolerance(std::sqrt(sum), DType::kFloat32));
}

// The loss of a step of given rows, each [16] inputs and labels that span the sample.
double loss_of(const RunConfig& run, const std::vector<std::vector<std::int32_t>>& windows) {
  const auto length = run.data.sequence_length;
  ModelSession session(run, false);
  const auto program =
      session.bind({.name = "forward",
                    .build = {.num_tokens = static_cast<std::int64_t>(windows.size()) * length}});
  session.load_parameters();
  session.refresh_derived();
  io::MicroBatch batch;
  for (std::size_t row = 0; row < windows.size(); ++row) {
    for (std::int64_t i = 0; i < length; ++i) {
      const auto place = static_cast<std::int32_t>(row) * static_cast<std::int32_t>(length);
      batch.tokens.push_back(windows[row][static_cast<std::size_t>(i)]);
      batch.labels.push_back(windows[row][static_cast<std::size_t>(i) + 1]);
      batch.positions.push_back(static_cast<std::int32_t>(i));
      batch.key_begin.push_back(place);
      batch.key_end.push_back(place + static_cast<std::int32_t>(i) + 1);
      batch.documents.push_back(place);
    }
  }
  program->set_batch(batch);
  program->set_scalar("inverse_tokens", 1.0f / static_cast<float>(batch.tokens.size()));
  program->run_alone(spec::Action::kForward);
  return program->scalar("loss");
}

TEST(SampleOrder, IsTheStreamInOrderWhenConcatenatedWithoutShuffle) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  // Two files of 20 + 13 and 40 tokens: a stream of 73, hence floor(72 / 16) = 4 samples.
  std::vector<std::int32_t> stream;
  run.data.train.clear();
  for (const auto& lengths : {std::vector<int>{20, 13}, std::vector<int>{40}}) {
    const auto prefix = folder.path() / fmt::format("file{}", run.data.train.size());
    io::IndexedFileWriter writer(prefix, io::TokenType::kUint16);
    for (const int length : lengths) {
      std::vector<std::int32_t> document;
      for (int i = 0; i < length; ++i)
        document.push_back(static_cast<std::int32_t>(
            ((stream.size() + static_cast<std::size_t>(i)) * 37 + 5) % 97));
      stream.insert(stream.end(), document.begin(), document.end());
      writer.append(document);
      writer.end_document();
    }
    writer.finish();
    run.data.train.push_back(prefix);
  }
  run.data.packing = "concatenated";
  run.data.shuffle = false;
  run.train.micro_batch_size = 1;
  run.train.gradient_accumulation_steps = 3;
  run.train.steps = 4;
  run.optimizer.learning_rate = 0;  // weights stay, so every step's loss is that of its samples
  Trainer(run).train();

  const auto window = [&](std::size_t i) {  // tokens i*16 .. i*16+16
    return std::vector<std::int32_t>(stream.begin() + static_cast<std::ptrdiff_t>(16 * i),
                                     stream.begin() + static_cast<std::ptrdiff_t>(16 * i + 17));
  };
  const std::vector<std::vector<std::size_t>> samples{{0, 1, 2}, {3, 0, 1}, {2, 3, 0}, {1, 2, 3}};
  const std::vector<int> epochs{0, 0, 1, 2};  // of each step's first sample
  const auto lines = metrics_of(run);
  ASSERT_EQ(lines.size(), 4u);
  for (std::size_t step = 0; step < 4; ++step) {
    const auto& of = samples[step];
    const double want = loss_of(run, {window(of[0]), window(of[1]), window(of[2])});
    EXPECT_LE(std::abs(lines[step]["loss"].get<double>() - want),
              agreement_tolerance(want, DType::kFloat32))
        << "step " << step + 1;
    EXPECT_EQ(lines[step]["epoch"], epochs[step]) << "step " << step + 1;
    EXPECT_EQ(lines[step]["tokens"], 48);
  }
  // A check that order shows: neighbouring samples have other losses.
  EXPECT_GT(std::abs(loss_of(run, {window(0)}) - loss_of(run, {window(1)})),
            10 * agreement_tolerance(4.0, DType::kFloat32));
}

}  // namespace
}  // namespace anabatic::train
