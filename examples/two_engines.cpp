// SPDX-License-Identifier: Apache-2.0
// usage: two_engines MODEL TEXT OUTPUT: two seeds of one model train at once, each on one thread.
#include <anabatic/engine.h>
#include <anabatic/error.h>

#include <cstdio>
#include <exception>
#include <thread>

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  anabatic::TrainSummary summaries[2];
  std::exception_ptr errors[2];
  const auto train = [&](int seed) {
    try {
      anabatic::Config config;
      config.model = {.path = argv[1], .init = anabatic::Config::Model::Init::kRandom};
      config.data.train = {argv[2]};
      config.data.sequence_length = 32;
      config.device.threads = 1;
      config.train.seed = seed;
      config.train.steps = 3;
      config.train.output = argv[3] + std::to_string(seed);
      summaries[seed] = anabatic::Engine(config).train();
    } catch (...) {
      errors[seed] = std::current_exception();
    }
  };
  std::thread other(train, 1);
  train(0);
  other.join();
  try {
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
  } catch (const anabatic::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  for (const anabatic::TrainSummary& summary : summaries)
    std::printf("%s: loss %.4f\n", summary.checkpoint.c_str(), summary.loss);
  return summaries[0].loss != summaries[1].loss ? 0 : 1;
}
