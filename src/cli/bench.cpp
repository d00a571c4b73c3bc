// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cstdio>
#include <iostream>

#include "base/error.h"
#include "bench/benchmark.h"
#include "bench/exchange_benchmark.h"
#include "bench/report.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "comm/launcher.h"
#include "comm/mpi_world.h"
#include "device/topology.h"

namespace anabatic::cli {
namespace {

constexpr std::int64_t kDefaultRounds = 7;

bench::Settings settings_of(const Invocation& invocation) {
  bench::Settings::Texts texts;
  for (const bench::SettingHelp& setting : bench::all_settings()) {
    const std::string flag = fmt::format("--{}", setting.name);
    if (invocation.has(flag)) texts[std::string(setting.name)] = invocation.value(flag);
  }
  return bench::Settings(std::move(texts));
}

void print_line(const std::string& text) {
  print_output("{}\n", text);
  flush_output();
}

// One round for every line of standard input, so that another program can run in between.
void serve(bench::Benchmark& benchmark, bench::Result result) {
  bench::Stopwatch stopwatch(benchmark, result.precision);
  for (const bench::Part& part : benchmark.parts()) result.parts.push_back({.part = part});
  print_line(bench::to_json(result));
  for (std::string line; std::getline(std::cin, line);)
    print_line(bench::to_json(benchmark.parts(), stopwatch.round()));
}

void measure(bench::Benchmark& benchmark, bench::Result& result) {
  bench::Stopwatch stopwatch(benchmark, result.precision);
  std::vector<bench::Round> rounds;
  std::vector<double> peaks, copies;
  for (std::int64_t i = 0; i < result.num_rounds; ++i) {
    rounds.push_back(stopwatch.round());
    peaks.push_back(rounds.back().peak_flops_per_second);
    copies.push_back(rounds.back().copy_bytes_per_second);
  }
  result.peak_flops_per_second = bench::median(std::move(peaks));
  result.copy_bytes_per_second = bench::median(std::move(copies));
  result.parts = bench::summarize(benchmark.parts(), rounds);
}

std::int64_t rounds_of(const Invocation& invocation) {
  const std::int64_t rounds = invocation.integer("--rounds", kDefaultRounds);
  ANABATIC_REQUIRE(rounds > 0, "[bench] --rounds: expected at least 1, got {}", rounds);
  return rounds;
}

int run_exchanges(const Invocation& invocation) {
  for (const char* flag : {"--accumulate", "--cpu_time", "--serve"})
    ANABATIC_REQUIRE(!invocation.has(flag), "[bench] {}: exchange does not know it", flag);
  std::unique_ptr<comm::MpiWorld> world;
  if (const auto process = comm::launched_process(); process && process->size > 1)
    world = std::make_unique<comm::MpiWorld>();
  const bench::ExchangeResult result = bench::measure_exchanges(
      world.get(), settings_of(invocation), rounds_of(invocation), !invocation.has("--no_check"));
  if (world == nullptr || world->rank() == 0)
    print_line(invocation.has("--json") ? bench::to_json(result) : bench::to_table(result));
  if (world != nullptr) world->finalize();
  return 0;
}

int run_bench(const Invocation& invocation) {
  if (invocation.positionals.at(0) == bench::kExchangeKind) return run_exchanges(invocation);
  const train::RunConfig config =
      train::with_training_precision(train::load_run_config("", invocation.overrides));
  bench::Result result{.kind = invocation.positionals.at(0),
                       .precision = config.train.precision,
                       .settings = settings_of(invocation),
                       .num_rounds = rounds_of(invocation),
                       .accumulate = invocation.has("--accumulate"),
                       .has_cpu_time = invocation.has("--cpu_time")};
  const auto benchmark =
      bench::make_benchmark(result.kind, config, result.settings, result.accumulate);
  if (result.has_cpu_time) benchmark->use_clock(device::thread_cpu_nanoseconds);
  const spec::DeviceSpec device = device::probe_cpu(benchmark->team(), false);
  result.cpu = device.model;
  result.num_threads = device.num_threads;
  result.arena_bytes = benchmark->arena_bytes();
  if (!invocation.has("--no_check")) result.checks.push_back(benchmark->check());
  if (invocation.has("--serve")) {
    serve(*benchmark, std::move(result));
    return 0;
  }
  measure(*benchmark, result);
  print_line(invocation.has("--json") ? bench::to_json(result) : bench::to_table(result));
  return 0;
}

std::vector<VerbOption> options() {
  static std::vector<std::string> names;  // storage of the options' names
  std::vector<VerbOption> options{
      {.name = "--rounds",
       .help = "number of rounds, each a probe of the machine and the work (default 7)"},
      {.name = "--accumulate",
       .help = "add to weight gradients instead of assigning them",
       .is_flag = true},
      {.name = "--cpu_time",
       .help = "count CPU time of one thread, for a machine that others use too",
       .is_flag = true},
      {.name = "--no_check",
       .help = "skip the comparison with the reference kernels",
       .is_flag = true},
      {.name = "--serve", .help = "run one round for each line of standard input", .is_flag = true},
      {.name = "--json", .help = "print one JSON object", .is_flag = true}};
  names.reserve(bench::all_settings().size());
  for (const bench::SettingHelp& setting : bench::all_settings()) {
    names.push_back(fmt::format("--{}", setting.name));
    options.push_back({.name = names.back(), .help = setting.help});
  }
  return options;
}

}  // namespace

const Verb& bench_verb() {
  static const Verb verb{"bench",
                         "speed of gemm, moe, attention, norm, loss, optimizer, quantize, sparse "
                         "or step against the peak, and of exchanges",
                         "KIND",
                         options(),
                         true,
                         run_bench};
  return verb;
}

}  // namespace anabatic::cli
