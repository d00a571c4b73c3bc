// SPDX-License-Identifier: Apache-2.0
#include "bench/calibrate.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "bench/profile.h"
#include "device/topology.h"
#include "train/run_plan.h"

namespace anabatic::bench {
namespace {

namespace fs = std::filesystem;

// Widths of a small real model, so that products fill their tiles; few layers and tokens, so that
// it takes little time.
constexpr const char* kConfig = R"({
  "model_type": "qwen3_moe", "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536,
  "moe_intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 8,
  "num_key_value_heads": 4, "head_dim": 64, "num_experts": 16, "num_experts_per_tok": 4,
  "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [0],
  "max_position_embeddings": 1024, "hidden_act": "silu", "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0, "attention_bias": false, "router_aux_loss_coef": 0.001,
  "output_router_logits": true, "tie_word_embeddings": false, "initializer_range": 0.02,
  "bos_token_id": 1, "eos_token_id": 2})";

struct TemporaryFile {
  fs::path path = fs::temp_directory_path() / fmt::format("anabatic-calibration-{}.json", getpid());
  TemporaryFile() { write_file_atomically(path, kConfig); }
  ~TemporaryFile() {
    std::error_code error;
    fs::remove(path, error);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
};

struct Sum {
  double calls = 0, seconds = 0, roof_seconds = 0;
};

constexpr ProfileOptions kThorough{.num_warmup_steps = 1, .num_steps = 3},
    kQuick{.num_warmup_steps = 1, .num_steps = 2};

// Threads, weights and probes of the peaks, of both precisions.
constexpr double kSecondsBeside = 2;

// At the shares of a plain machine.
double expected_seconds(train::RunConfig run, const ProfileOptions& options) {
  const model::ModelConfig config = model::load_config(run.model.path);
  const spec::DeviceSpec device = device::describe_cpu(static_cast<int>(run.device.threads));
  double seconds = kSecondsBeside;
  for (const char* precision : {"fp32", "bf16"}) {
    run.train.precision = precision;
    const train::RunPlan planned = train::plan_run(run, config, device, plan::default_efficiency());
    seconds += static_cast<double>(options.num_warmup_steps + options.num_steps) *
               train::price_run(run, planned.training, device, plan::default_efficiency()).seconds;
  }
  return seconds;
}

// Does every one of so many threads get a core for itself, for a tenth of a second?
bool is_idle(int num_threads) {
  constexpr double kSpinSeconds = 0.1, kLeastShare = 0.9;
  const auto now = [](clockid_t clock) {
    timespec time{};
    ::clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  std::vector<double> shares(static_cast<std::size_t>(num_threads));
  std::vector<std::thread> threads;
  for (double& share : shares)
    threads.emplace_back([&share, &now] {
      const double begin = now(CLOCK_MONOTONIC), used = now(CLOCK_THREAD_CPUTIME_ID);
      double wall = 0;
      while (wall < kSpinSeconds) wall = now(CLOCK_MONOTONIC) - begin;
      share = (now(CLOCK_THREAD_CPUTIME_ID) - used) / wall;
    });
  for (std::thread& thread : threads) thread.join();
  return std::all_of(shares.begin(), shares.end(),
                     [&](double share) { return share > kLeastShare; });
}

std::optional<train::Calibration> measure(std::int64_t num_threads, const ProfileOptions& options,
                                          double most_seconds) {
  const TemporaryFile config;
  train::RunConfig run;
  run.model.path = config.path.string();
  run.model.init = "random";
  run.data.sequence_length = 256;
  run.train.micro_batch_size = 2;
  run.device.threads = num_threads;
  const bool is_limited = most_seconds < std::numeric_limits<double>::infinity();
  if (is_limited && (expected_seconds(run, options) > most_seconds ||
                     !is_idle(device::describe_cpu(static_cast<int>(num_threads)).num_threads)))
    return std::nullopt;
  train::Calibration result{.efficiency = plan::default_efficiency(),
                            .source = "calibrated on this machine"};
  std::map<std::string, Sum> sums;
  for (const char* precision : {"fp32", "bf16"}) {
    run.train.precision = precision;
    const Profile profile = bench::profile(run, options);
    for (std::size_t i = 0; i < profile.calls.size(); ++i) {
      Sum& sum = sums[profile.call_keys[i]];
      sum.calls += profile.calls[i].calls;
      sum.seconds += profile.calls[i].seconds;
      sum.roof_seconds += profile.calls[i].roof_seconds;
    }
    result.fp32_flops_per_second = profile.fp32_flops_per_second;
    result.bf16_flops_per_second = profile.bf16_flops_per_second;
    result.copy_bytes_per_second = profile.copy_bytes_per_second;
  }
  // A call that takes little more than waking the team says nothing of the roof: left to defaults.
  constexpr double kLeastSeconds = 30e-6, kLeastShare = 1e-3;
  for (const auto& [key, sum] : sums) {
    if (sum.calls == 0 || sum.seconds < kLeastSeconds * sum.calls) continue;
    const double share = sum.roof_seconds / sum.seconds;
    if (share >= kLeastShare) result.efficiency.share_of_roof[key] = share;
  }
  return result;
}

}  // namespace

train::Calibration calibrate(std::int64_t num_threads) {
  return *measure(num_threads, kThorough, std::numeric_limits<double>::infinity());
}

std::optional<train::Calibration> calibrate_within(std::int64_t num_threads, double most_seconds) {
  return measure(num_threads, kQuick, most_seconds);
}

}  // namespace anabatic::bench
