// SPDX-License-Identifier: Apache-2.0
// usage: consumer MODEL_CONFIG TOKENS OUTPUT: trains two steps through the installed API and prints
// the loss.
#include <anabatic/engine.h>
#include <anabatic/error.h>
#include <anabatic/version.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    anabatic::Engine engine({{"model.path", {argv[1]}},
                             {"model.init", {"random"}},
                             {"data.train", {argv[2]}},
                             {"data.sequence_length", {"16"}},
                             {"train.steps", {"2"}},
                             {"train.output", {argv[3]}}});
    const anabatic::TrainSummary summary = engine.train();
    std::printf("anabatic %s: step %lld, loss %f\n", anabatic::kVersion,
                static_cast<long long>(summary.step), summary.loss);
    return summary.step == 2 ? 0 : 1;
  } catch (const anabatic::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
