// SPDX-License-Identifier: Apache-2.0
#include "bench/calibrate.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "bench/benchmark.h"
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

// The size of each of the two measured steps.
struct Size {
  std::int64_t micro_batch_size, sequence_length;
};
constexpr std::array<Size, 2> kSizes{{{2, 256}, {4, 512}}};

// Ops that only a plan under a budget uses are measured in the same steps: recomputed values, and
// values saved as int8, which steps of int8 products have anyway. The smaller step makes second
// packings in its backward, the larger one keeps them: neither their time nor that of an update
// depends on the number of tokens.
ProfileOptions steps(std::string_view precision, std::size_t size) {
  spec::Decisions decisions;
  decisions.pack_transposed = size > 0;
  if (precision == "int8")
    return {.num_warmup_steps = 1, .num_steps = 3, .decisions = std::move(decisions)};
  decisions.recompute = {"layers.0.mlp_norm", "layers.1.mlp_norm"};
  for (const char* value : {"layers.0.mlp.gate", "layers.1.experts.gate"})
    decisions.saved_as[value] = spec::SavedForm::kInt8;
  return {.num_warmup_steps = 1, .num_steps = 3, .decisions = std::move(decisions)};
}

constexpr double kDropout = 0.1;  // its price does not depend on the rate

// A profile whose peak is this much below the best one's is of a minute that others had a part of,
// and is taken again, so many times in all; likewise one whose copy bandwidth is this much above
// the least: a host that has moved its cores apart gives each a path to memory of its own, and
// they no longer share a cache.
constexpr double kLeastPeak = 0.93, kMostCopy = 1.2;
constexpr int kMostAgain = 4;

// Threads, weights and probes of the peaks, of each precision, and products with sparse weights.
constexpr double kSecondsBeside = 4;

constexpr std::array<std::pair<const char*, std::size_t>, 6> kRuns{
    {{"fp32", 0}, {"fp32", 1}, {"bf16", 0}, {"bf16", 1}, {"int8", 0}, {"int8", 1}}};

void set(train::RunConfig& run, const char* precision, std::size_t size) {
  run.train.precision = precision;
  run.train.micro_batch_size = kSizes[size].micro_batch_size;
  run.data.sequence_length = kSizes[size].sequence_length;
  run.dropout.residual = kDropout;
  run.compiler.disable_passes = {"fuse_norm_linear"};  // norm_times() measures what that changes
}

// At the shares of a plain machine.
double expected_seconds(train::RunConfig run) {
  const model::ModelConfig config = model::load_config(run.model.path);
  const spec::DeviceSpec device = device::describe_cpu(static_cast<int>(run.device.threads));
  double seconds = kSecondsBeside;
  for (const auto& [precision, size] : kRuns) {
    set(run, precision, size);
    const ProfileOptions options = steps(precision, size);
    const train::RunPlan planned =
        *train::plan_run(run, config, device, plan::default_efficiency());
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

// The median of each call, in seconds; infinite where it was not called.
std::vector<double> medians_of(const Profile& profile) {
  std::vector<std::vector<double>> samples(profile.calls.size());
  for (const TraceEvent& event : profile.events)
    samples[static_cast<std::size_t>(event.call)].push_back(1e-9 *
                                                            static_cast<double>(event.nanoseconds));
  std::vector<double> medians;
  for (std::vector<double>& list : samples) {
    std::sort(list.begin(), list.end());
    medians.push_back(list.empty() ? std::numeric_limits<double>::infinity()
                                   : list[(list.size() - 1) / 2]);
  }
  return medians;
}

// Profiles of kRuns, all of minutes in which the machine was about as fast.
std::vector<Profile> profiles_of(train::RunConfig run) {
  std::vector<Profile> profiles;
  const auto take = [&](std::size_t i) {
    set(run, kRuns[i].first, kRuns[i].second);
    return bench::profile(run, steps(kRuns[i].first, kRuns[i].second));
  };
  for (std::size_t i = 0; i < kRuns.size(); ++i) profiles.push_back(take(i));
  const auto slower = [](const Profile& a, const Profile& b) {
    return a.fp32_flops_per_second < b.fp32_flops_per_second;
  };
  const auto less_copied = [](const Profile& a, const Profile& b) {
    return a.copy_bytes_per_second < b.copy_bytes_per_second;
  };
  for (int again = 0; again < kMostAgain; ++again) {
    const auto [slowest, fastest] = std::minmax_element(profiles.begin(), profiles.end(), slower);
    const auto [together, apart] =
        std::minmax_element(profiles.begin(), profiles.end(), less_copied);
    if (slowest->fp32_flops_per_second < kLeastPeak * fastest->fp32_flops_per_second) {
      Profile next = take(static_cast<std::size_t>(slowest - profiles.begin()));
      if (slower(*slowest, next)) *slowest = std::move(next);
    } else if (apart->copy_bytes_per_second > kMostCopy * together->copy_bytes_per_second) {
      Profile next = take(static_cast<std::size_t>(apart - profiles.begin()));
      if (less_copied(next, *apart)) *apart = std::move(next);
    } else {
      break;
    }
  }
  return profiles;
}

// Products with sparse weights, which no model of a calibration has: small and large calls of the
// benchmark of each pattern, for one weight and for experts.
std::map<std::string, std::array<OpTimes, kSizes.size()>> sparse_times(
    train::RunConfig run, const train::Calibration& peaks) {
  constexpr std::array<const char*, kSizes.size()> kRows{"512", "2048"};
  constexpr int kRepeats = 3;
  struct Direction {
    const char *part, *suffix;
  };
  constexpr Direction kDirections[] = {{"forward", ""},
                                       {"input_gradient", "_input_gradient"},
                                       {"weight_gradient", "_weight_gradient"}};
  std::map<std::string, std::array<OpTimes, kSizes.size()>> times;
  for (const char* precision : {"fp32", "bf16"})
    for (const std::string pattern : {"block32", "block16", "2:4", "unstructured"})
      for (const char* experts : {"0", "4"})
        for (std::size_t size = 0; size < kRows.size(); ++size) {
          run.train.precision = precision;
          Settings settings({{"pattern", pattern},
                             {"experts", experts},
                             {"rows", kRows[size]},
                             {"density", pattern == "unstructured" ? "0.1"
                                         : pattern == "2:4"        ? "0.5"
                                                                   : "0.25"},
                             {"in", "512"},
                             {"out", "768"}});
          const std::unique_ptr<Benchmark> benchmark =
              make_benchmark("sparse", run, settings, false);
          std::vector<std::vector<double>> rounds(kRepeats);
          for (std::vector<double>& seconds : rounds) {
            seconds.resize(benchmark->parts().size(), 0.0);
            benchmark->run(seconds);
          }
          const bool is_bf16 = std::string_view(precision) == "bf16";
          for (const Direction& direction : kDirections)
            for (std::size_t i = 0; i < benchmark->parts().size(); ++i) {
              const Part& part = benchmark->parts()[i];
              if (part.name != direction.part) continue;
              // What stays dense has the price of others.
              if (!pattern.starts_with("block") && part.name == "weight_gradient") continue;
              double least = rounds[0][i];
              for (const std::vector<double>& seconds : rounds) least = std::min(least, seconds[i]);
              const std::string key =
                  fmt::format("{}sparse_linear{} {} {}", experts[0] == '0' ? "" : "grouped_",
                              direction.suffix, pattern, precision);
              times[key][size] = {
                  .calls = 1,
                  .seconds = least,
                  .roof_seconds = std::max(part.flops / (is_bf16 ? peaks.bf16_flops_per_second
                                                                 : peaks.fp32_flops_per_second),
                                           part.bytes / peaks.copy_bytes_per_second)};
            }
        }
  return times;
}

// Products that apply a norm, next to the same ones and the norm apart: what the norm adds to a
// product, and the norm's statistics, in small and large calls.
struct NormTimes {
  std::map<std::string, std::array<OpTimes, kSizes.size()>> ops;
  std::map<std::string, double> shares;  // by plan::norm_price_key
};
NormTimes norm_times(train::RunConfig run, const train::Calibration& peaks,
                     spec::DeviceSpec device) {
  constexpr std::array<std::int64_t, kSizes.size()> kRows{1024, 4096};
  constexpr std::int64_t kWidth = 512, kOut = 768;
  constexpr int kRepeats = 5;
  constexpr double kMostNormShare = 20;  // a difference below that is noise
  constexpr std::pair<const char*, spec::ProductRole> kParts[] = {
      {"forward", spec::ProductRole::kForward},
      {"weight_gradient", spec::ProductRole::kWeightGradient}};
  device.copy_bytes_per_second = peaks.copy_bytes_per_second;
  run.compiler.disable_passes.clear();
  NormTimes times;
  for (const auto& [precision, dtype] :
       {std::pair{"fp32", DType::kFloat32}, std::pair{"bf16", DType::kBFloat16}}) {
    run.train.precision = precision;
    std::map<std::string, double> added, roofs;
    for (std::size_t size = 0; size < kRows.size(); ++size) {
      Settings settings({{"op", "norm_linear"},
                         {"rows", std::to_string(kRows[size])},
                         {"width", std::to_string(kWidth)},
                         {"out", std::to_string(kOut)}});
      const std::unique_ptr<Benchmark> benchmark = make_benchmark("norm", run, settings, false);
      std::map<std::string, double> least;  // by part
      for (int round = 0; round < kRepeats; ++round) {
        std::vector<double> seconds(benchmark->parts().size(), 0.0);
        benchmark->run(seconds);
        for (std::size_t i = 0; i < seconds.size(); ++i) {
          const auto [part, is_new] = least.try_emplace(benchmark->parts()[i].name, seconds[i]);
          part->second = std::min(part->second, seconds[i]);
          if (benchmark->parts()[i].name == "norm")
            for (const char* op : {"add_norm_statistics", "norm_statistics"})
              times.ops[fmt::format("{} {}", op, precision)][size] = {
                  .calls = 1,
                  .seconds = part->second,
                  .roof_seconds = benchmark->parts()[i].bytes / peaks.copy_bytes_per_second};
        }
      }
      for (const auto& [part, role] : kParts) {
        const std::string key = plan::norm_price_key(role, dtype);
        added[key] += least.at(part) - least.at(fmt::format("without_pass.{}", part));
        roofs[key] += plan::norm_roof_seconds(kRows[size], kWidth, kOut, dtype, role, device);
      }
    }
    for (const auto& [key, roof] : roofs)
      times.shares[key] = roof / std::max(added.at(key), roof / kMostNormShare);
  }
  return times;
}

// Statistics whose calls are too short to measure have the price of the norm.
void take_prices_of_norms(plan::OpEfficiency& efficiency) {
  for (const auto& [op, norm] :
       {std::pair{"add_norm_statistics", "add_rms_norm"}, std::pair{"norm_statistics", "rms_norm"}})
    for (const char* precision : {"fp32", "bf16"}) {
      const auto found = efficiency.share_of_roof.find(fmt::format("{} {}", norm, precision));
      if (found != efficiency.share_of_roof.end())
        efficiency.share_of_roof.try_emplace(fmt::format("{} {}", op, precision), found->second);
    }
}

std::optional<train::Calibration> measure(std::int64_t num_threads, double most_seconds) {
  const TemporaryFile config;
  train::RunConfig run;
  run.model.path = config.path.string();
  run.model.init = "random";
  run.device.threads = num_threads;
  run.memory.compress = "int8";  // which steps() takes
  const bool is_limited = most_seconds < std::numeric_limits<double>::infinity();
  if (is_limited && (expected_seconds(run) > most_seconds ||
                     !is_idle(device::describe_cpu(static_cast<int>(num_threads)).num_threads)))
    return std::nullopt;
  train::Calibration result{.efficiency = plan::default_efficiency(),
                            .source = "calibrated on this machine"};
  const std::vector<Profile> profiles = profiles_of(run);
  for (const Profile& profile : profiles) {
    const auto keep_most = [](double& peak, double measured) { peak = std::max(peak, measured); };
    keep_most(result.fp32_flops_per_second, profile.fp32_flops_per_second);
    keep_most(result.bf16_flops_per_second, profile.bf16_flops_per_second);
    keep_most(result.int8_ops_per_second, profile.int8_ops_per_second);
    keep_most(result.copy_bytes_per_second, profile.copy_bytes_per_second);
  }
  std::map<std::string, std::array<OpTimes, kSizes.size()>> times;
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    const std::vector<double> seconds = medians_of(profiles[i]);
    for (std::size_t call = 0; call < seconds.size(); ++call) {
      if (!std::isfinite(seconds[call])) continue;
      const ProfileRow& row = profiles[i].calls[call];
      const std::string& key = profiles[i].call_keys[call];
      const double peak = key.ends_with(" int8")   ? result.int8_ops_per_second
                          : key.ends_with(" bf16") ? result.bf16_flops_per_second
                                                   : result.fp32_flops_per_second;
      OpTimes& sum = times[key][kRuns[i].second];
      sum.calls += 1;
      sum.seconds += seconds[call];
      sum.weight_bytes += static_cast<double>(profiles[i].call_weight_bytes[call]);
      const double blocks =
          key.starts_with("attention")
              ? plan::attention_blocks_ratio(kSizes[kRuns[i].second].sequence_length)
              : 1;
      sum.roof_seconds +=
          std::max(blocks * row.flops / peak, row.bytes / result.copy_bytes_per_second) / row.calls;
    }
  }
  for (auto& [key, sizes] : sparse_times(run, result)) times[key] = sizes;
  const NormTimes norms =
      norm_times(run, result, device::describe_cpu(static_cast<int>(num_threads)));
  for (const auto& [key, sizes] : norms.ops) times[key] = sizes;
  for (const auto& [key, share] : norms.shares) result.efficiency.share_of_roof[key] = share;
  for (const auto& [key, sizes] : times)
    if (const auto price = price_of(sizes[0], sizes[1])) {
      result.efficiency.share_of_roof[key] = price->share_of_roof;
      result.efficiency.fixed_seconds[key] = price->fixed_seconds;
      if (price->weight_bytes > 0) result.efficiency.fixed_weight_bytes[key] = price->weight_bytes;
    }
  take_prices_of_norms(result.efficiency);
  return result;
}

}  // namespace

std::optional<OpPrice> price_of(const OpTimes& small, const OpTimes& large) {
  constexpr double kLeastSeconds = 30e-6, kLeastShare = 1e-3;
  // The roof of the larger size over that of the smaller one, and how much larger a share the line
  // may have than the larger size reached: beyond, it is noise that is drawn out.
  constexpr double kLeastGrowth = 1.5, kMostGain = 1.5;
  const double calls = small.calls + large.calls, seconds = small.seconds + large.seconds;
  if (calls == 0 || seconds < kLeastSeconds * calls) return std::nullopt;
  OpPrice price{.share_of_roof = (small.roof_seconds + large.roof_seconds) / seconds};
  const double weight_bytes = (small.weight_bytes + large.weight_bytes) / calls;
  const bool same_weights = small.weight_bytes * large.calls == large.weight_bytes * small.calls;
  if (small.calls > 0 && large.calls > 0 && same_weights) {
    const double roof = large.roof_seconds / large.calls, taken = large.seconds / large.calls,
                 more_roof = roof - small.roof_seconds / small.calls,
                 more_taken = taken - small.seconds / small.calls;
    if (roof > kLeastGrowth * (roof - more_roof) && more_taken > 0) {
      price.share_of_roof = std::min(more_roof / more_taken, kMostGain * roof / taken);
      price.fixed_seconds = taken - roof / price.share_of_roof;
      price.weight_bytes = weight_bytes;
      if (price.fixed_seconds < 0) price = {.share_of_roof = roof / taken};  // grows faster
    }
  }
  if (price.share_of_roof < kLeastShare) return std::nullopt;
  return price;
}

train::Calibration calibrate(std::int64_t num_threads) {
  return *measure(num_threads, std::numeric_limits<double>::infinity());
}

std::optional<train::Calibration> calibrate_within(std::int64_t num_threads, double most_seconds) {
  return measure(num_threads, most_seconds);
}

}  // namespace anabatic::bench
