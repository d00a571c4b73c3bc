// SPDX-License-Identifier: Apache-2.0
// A benchmark: work that is compiled as training compiles it, compared with the reference kernels,
// then timed in alternation with probes of the machine's peak.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/settings.h"
#include "device/clock.h"
#include "device/thread_team.h"
#include "spec/device_spec.h"
#include "train/run_config.h"

namespace anabatic::bench {

// One row of a result: the first is the whole, later ones are parts of it.
struct Part {
  std::string name;  // "total", "forward", "input_gradient", ...
  double flops = 0;  // useful FLOPs; 0: a share of the peak means nothing here
  double bytes = 0;  // useful bytes, each operand once; 0: likewise
  std::string of{};  // the part that its time is told as a multiple of; empty: none
};

// The worst tensor of one comparison with `ref`: ‖got - want‖ <= bound · ‖want‖.
struct Check {
  std::string tensor;
  double error = 0, bound = 0;
  std::int64_t tokens = 0;  // rows that took part
};

class Benchmark {
 public:
  virtual ~Benchmark() = default;
  virtual const std::vector<Part>& parts() const = 0;
  virtual device::ThreadTeam& team() = 0;
  virtual std::int64_t arena_bytes() const = 0;  // frame, gradients and inputs
  // Error naming tensor, error and bound when a result is not that of `ref`.
  virtual Check check() = 0;
  // Runs the work once and adds the seconds of each part.
  virtual void run(std::span<double> seconds) = 0;

  // The clock of run() and of the probes between runs. InvalidArgument for the CPU time of one
  // thread when the team has more.
  void use_clock(device::Clock now);
  device::Clock clock() const { return now_; }

 private:
  device::Clock now_ = device::wall_nanoseconds;
};

// InvalidArgument naming the nearest kind, or the settings that the kind does not know.
// `accumulate`: weight gradients are added to instead of assigned.
std::unique_ptr<Benchmark> make_benchmark(std::string_view kind, const train::RunConfig& run,
                                          Settings& settings, bool accumulate);

// One round: probes, then the work.
struct Round {
  double peak_flops_per_second = 0, copy_bytes_per_second = 0;
  std::vector<double> seconds;  // one for each part
};

struct PartResult {
  Part part;
  double seconds = 0;                     // the median
  double peak_share = 0, copy_share = 0;  // medians of the rounds' own ratios; 0: without meaning
  double ratio = 0;                       // of its seconds to those of Part::of, likewise
};

struct Result {
  std::string kind, precision, cpu;
  Settings settings;
  std::int64_t num_threads = 0, num_rounds = 0, arena_bytes = 0;
  bool accumulate = false;
  bool has_cpu_time = false;                                    // seconds are the thread's own
  double peak_flops_per_second = 0, copy_bytes_per_second = 0;  // medians
  std::vector<PartResult> parts;
  std::vector<Check> checks;  // empty: switched off
};

// Alternates probes and work. Each round repeats the work until 10 ms have passed; a first untimed
// round finds how often that is.
class Stopwatch {
 public:
  Stopwatch(Benchmark& benchmark, std::string_view precision);
  ~Stopwatch();
  Round round();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::vector<PartResult> summarize(const std::vector<Part>& parts, std::span<const Round> rounds);
double median(std::vector<double> values);  // of at least one value

}  // namespace anabatic::bench
