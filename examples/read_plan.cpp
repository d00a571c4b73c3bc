// SPDX-License-Identifier: Apache-2.0
// usage: read_plan MODEL [MEGABYTES]: what a training step of the model takes.
#include <anabatic/plan.h>

#include <cstdio>
#include <cstdlib>

namespace {

double megabytes(std::int64_t bytes) { return 1e-6 * static_cast<double>(bytes); }

void print(const anabatic::PlannedStep& step) {
  std::printf("peak %.1f MB, %.3g s a step (%s)\n", megabytes(step.summary.peak_memory_bytes),
              step.summary.step_seconds, step.summary.price_source.c_str());
  for (const anabatic::MemoryShare& share : step.summary.memory)
    std::printf("%10.1f MB  %s\n", megabytes(share.bytes), share.name.c_str());
  for (const anabatic::PlannedChoice& choice : step.choices)
    std::printf("%s: %s\n", choice.value.c_str(), choice.form.c_str());
}

void print(const anabatic::Refusal& refusal) {
  std::printf("%s\nthe smallest budget that does: %.1f MB\n", refusal.reason.c_str(),
              megabytes(refusal.smallest_bytes));
  for (const anabatic::Consumer& consumer : refusal.consumers)
    std::printf("%10.1f MB  %s: %s\n", megabytes(consumer.bytes), consumer.name.c_str(),
                consumer.remedy.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  anabatic::Config config;
  config.model.path = argv[1];
  if (argc > 2) config.memory.budget = std::int64_t{1'000'000} * std::atoll(argv[2]);
  try {
    std::visit([](const auto& outcome) { print(outcome); }, anabatic::plan_step(config));
  } catch (const anabatic::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
