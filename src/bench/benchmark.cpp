// SPDX-License-Identifier: Apache-2.0
#include "bench/benchmark.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "bench/cases.h"
#include "bench/exchange_benchmark.h"
#include "device/probe.h"
#include "device/topology.h"

namespace anabatic::bench {
namespace {

constexpr double kRoundSeconds = 10e-3;
constexpr int kProbesARound = 3;
constexpr double kMostRepeats = 1000;

struct Kind {
  std::string_view name;
  std::unique_ptr<Benchmark> (*make)(const train::RunConfig&, Settings&, bool accumulate);
};
constexpr std::array<Kind, 9> kKinds{{{"gemm", make_gemm},
                                      {"moe", make_moe},
                                      {"attention", make_attention},
                                      {"norm", make_norm},
                                      {"loss", make_loss},
                                      {"optimizer", make_optimizer},
                                      {"quantize", make_quantize},
                                      {"sparse", make_sparse},
                                      {"step", make_step}}};

}  // namespace

std::unique_ptr<Benchmark> make_benchmark(std::string_view kind, const train::RunConfig& run,
                                          Settings& settings, bool accumulate) {
  std::vector<std::string> names;
  for (const Kind& known : kKinds) {
    if (known.name == kind) {
      auto benchmark = known.make(run, settings, accumulate);
      settings.require_all_read(kind);
      return benchmark;
    }
    names.emplace_back(known.name);
  }
  names.emplace_back(kExchangeKind);
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  const auto nearest = nearest_word(kind, names);
  throw InvalidArgument(fmt::format("[bench] expected one of {}, got '{}'{}", list, kind,
                                    nearest ? fmt::format("; did you mean {}?", *nearest) : ""));
}

void Benchmark::use_clock(device::Clock now) {
  ANABATIC_REQUIRE(now == device::wall_nanoseconds || team().num_threads() == 1,
                   "[bench] --cpu_time: expected --device.threads 1, got {}", team().num_threads());
  now_ = now;
}

struct Stopwatch::Impl {
  Benchmark& benchmark;
  const std::string precision;
  device::PeakProbe probe;
  std::int64_t num_repeats = 1;

  Impl(Benchmark& the_benchmark, std::string_view the_precision)
      : benchmark(the_benchmark),
        precision(the_precision),
        probe(benchmark.team(), device::probe_cpu(benchmark.team(), false), benchmark.clock()) {
    std::vector<double> seconds = run();
    seconds = run();  // the first one met cold pages and caches
    num_repeats = static_cast<std::int64_t>(
        std::clamp(std::ceil(kRoundSeconds / std::max(seconds[0], 1e-9)), 1.0, kMostRepeats));
  }

  double peak() {
    if (precision == "int8") return probe.int8_ops_per_second();
    return precision == "bf16" ? probe.bf16_flops_per_second() : probe.fp32_flops_per_second();
  }

  std::vector<double> run() const {
    std::vector<double> seconds(benchmark.parts().size(), 0.0);
    for (std::int64_t i = 0; i < num_repeats; ++i) benchmark.run(seconds);
    for (double& value : seconds) value /= static_cast<double>(num_repeats);
    return seconds;
  }
};

Stopwatch::Stopwatch(Benchmark& benchmark, std::string_view precision)
    : impl_(std::make_unique<Impl>(benchmark, precision)) {}
Stopwatch::~Stopwatch() = default;

Round Stopwatch::round() {
  Round round;
  std::vector<double> peaks, copies;
  for (int i = 0; i < kProbesARound; ++i) {
    peaks.push_back(impl_->peak());
    copies.push_back(impl_->probe.copy_bytes_per_second());
  }
  round.peak_flops_per_second = median(std::move(peaks));
  round.copy_bytes_per_second = median(std::move(copies));
  round.seconds = impl_->run();
  return round;
}

double median(std::vector<double> values) {
  ANABATIC_CHECK(!values.empty(), "[bench] median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return 0.5 * (*middle + *std::max_element(values.begin(), middle));
}

std::vector<PartResult> summarize(const std::vector<Part>& parts, std::span<const Round> rounds) {
  std::vector<PartResult> results;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto of = std::ranges::find(parts, parts[i].of, &Part::name);
    ANABATIC_CHECK(parts[i].of.empty() || of != parts.end(),
                   "[bench] {} is of {}, which is no part", parts[i].name, parts[i].of);
    std::vector<double> seconds, peak_shares, copy_shares, ratios;
    for (const Round& round : rounds) {
      const double time = std::max(round.seconds[i], 1e-12);
      seconds.push_back(round.seconds[i]);
      peak_shares.push_back(parts[i].flops / time / round.peak_flops_per_second);
      copy_shares.push_back(parts[i].bytes / time / round.copy_bytes_per_second);
      if (!parts[i].of.empty())
        ratios.push_back(
            time / std::max(round.seconds[static_cast<std::size_t>(of - parts.begin())], 1e-12));
    }
    results.push_back({.part = parts[i],
                       .seconds = median(std::move(seconds)),
                       .peak_share = median(std::move(peak_shares)),
                       .copy_share = median(std::move(copy_shares)),
                       .ratio = ratios.empty() ? 0.0 : median(std::move(ratios))});
  }
  return results;
}

}  // namespace anabatic::bench
