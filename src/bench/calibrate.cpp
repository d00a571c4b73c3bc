// SPDX-License-Identifier: Apache-2.0
#include "bench/calibrate.h"

#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "bench/profile.h"

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

}  // namespace

train::Calibration calibrate(std::int64_t num_threads) {
  const TemporaryFile config;
  train::RunConfig run;
  run.model.path = config.path.string();
  run.model.init = "random";
  run.data.sequence_length = 256;
  run.train.micro_batch_size = 2;
  run.device.threads = num_threads;
  train::Calibration result{.efficiency = plan::default_efficiency(),
                            .source = "calibrated on this machine"};
  std::map<std::string, Sum> sums;
  for (const char* precision : {"fp32", "bf16"}) {
    run.train.precision = precision;
    const Profile profile = bench::profile(run, {.num_warmup_steps = 1, .num_steps = 3});
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

}  // namespace anabatic::bench
