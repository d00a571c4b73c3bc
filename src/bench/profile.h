// SPDX-License-Identifier: Apache-2.0
// Measures where the time of a training step is spent: every call of a few steps, compared with
// probes that run between them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spec/decisions.h"
#include "spec/training.h"
#include "train/run_config.h"

namespace anabatic::bench {

// Means over the measured steps. Shares are of the step's time.
struct ProfileRow {
  std::string name;
  std::string kernel{};         // of single calls
  double calls = 0;             // a step
  double seconds = 0;           // a step
  double flops = 0, bytes = 0;  // by the ops' own estimates; attention counts unmasked pairs
  double roof_seconds = 0;      // the least time that peak and copy bandwidth allow
  // Share of the threads' time in these calls that the average thread waits for the slowest. 0 is
  // even; 1 - 1/n if one of n threads works alone.
  double imbalance = 0;

  double flops_per_second() const { return seconds > 0 ? flops / seconds : 0; }
  double bytes_per_second() const { return seconds > 0 ? bytes / seconds : 0; }
  double roof_share() const { return seconds > 0 ? roof_seconds / seconds : 0; }
};

// An exchange between ranks, as the mean over the measured steps.
struct ProfiledExchange {
  std::string name, kind;  // train/ranks/planned_exchanges.h; "all_gather"
  double count = 0, sent_bytes = 0, busy_seconds = 0, exposed_seconds = 0;  // a step
  double bytes_per_second() const { return busy_seconds > 0 ? sent_bytes / busy_seconds : 0; }
};

// One call of one measured step, for the trace.
struct TraceEvent {
  std::int32_t call = 0;  // index into Profile::calls
  std::int32_t step = 0;
  std::int64_t begin_nanoseconds = 0, nanoseconds = 0;
};

struct Profile {
  std::string model_type, precision, cpu;
  std::int64_t num_threads = 0, num_steps = 0, num_warmup_steps = 0;
  std::int64_t tokens = 0;  // a step, on all ranks
  bool has_data = false;    // false: random tokens
  // Medians of probes between the steps.
  double fp32_flops_per_second = 0, bf16_flops_per_second = 0, copy_bytes_per_second = 0;
  double int8_ops_per_second = 0;  // of a run with int8 products
  double step_seconds = 0;         // the mean, which the rows sum to; from one batch to the next
  double median_step_seconds = 0;
  // States on disk, for a measured step: bytes moved both ways, time of the transfers, and how long
  // the step waited for them.
  double disk_bytes = 0, disk_seconds = 0, disk_waited_seconds = 0;
  double outside_seconds = 0;  // a step: dispatch, batches, metrics, waits for exchanges
  double model_flops = 0;      // a step, of the first rank
  // By time, longest first; each list sums to step_seconds together with outside_seconds.
  std::vector<ProfileRow> by_op, by_segment, by_phase;
  std::int64_t num_ranks = 1;
  std::vector<ProfiledExchange> exchanges;  // in the order of their posts; of the first rank
  std::vector<ProfileRow> calls;  // in the order of the program: forward, backward, update
  std::vector<std::string> call_segments;
  std::vector<std::string> call_keys;           // plan::price_key; "fill" for zeroes before a call
  std::vector<std::int64_t> call_weight_bytes;  // plan::weight_bytes
  std::vector<TraceEvent> events;
  struct Step {
    std::int64_t begin_nanoseconds = 0, nanoseconds = 0;
  };
  std::vector<Step> steps;

  double peak_of(spec::Precision of) const {
    return of == spec::Precision::kInt8   ? int8_ops_per_second
           : of == spec::Precision::kBf16 ? bf16_flops_per_second
                                          : fp32_flops_per_second;
  }
  double mfu() const {
    const double peak = precision == "int8"   ? int8_ops_per_second
                        : precision == "bf16" ? bf16_flops_per_second
                                              : fp32_flops_per_second;
    return step_seconds > 0 && peak > 0 ? model_flops / step_seconds / peak : 0;
  }
};

struct ProfileOptions {
  std::int64_t num_warmup_steps = 2, num_steps = 3;
  std::optional<spec::Decisions> decisions{};  // of the plan; none: those that `train` chooses
};

// Trains run.model.path for warm-up and measured steps on run.data.train, or on random tokens when
// there is none. Writes no checkpoint and no metrics. InvalidArgument without model.path, and
// without data where several ranks share a step.
Profile profile(const train::RunConfig& run, const ProfileOptions& options);

}  // namespace anabatic::bench
