// SPDX-License-Identifier: Apache-2.0
#include "cli/calibrate_once.h"
#include "cli/verb.h"
#include "train/trainer.h"

namespace anabatic::cli {
namespace {

int run(const Invocation& invocation) {
  const std::string file = invocation.positionals.empty() ? "" : invocation.positionals[0];
  const train::RunConfig config = train::load_run_config(file, invocation.overrides);
  calibrate_once(config);
  train::Trainer trainer(config);
  trainer.train();
  return 0;
}

}  // namespace

const Verb& train_verb() {
  static const Verb verb{"train", "train a model on text", "CONFIG.yaml?", {}, true, run};
  return verb;
}

}  // namespace anabatic::cli
