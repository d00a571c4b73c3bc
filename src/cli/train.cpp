// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "cli/calibrate_once.h"
#include "cli/console.h"
#include "cli/verb.h"
#include "train/trainer.h"

namespace anabatic::cli {
namespace {

int run(const Invocation& invocation) {
  const std::string file = invocation.positionals.empty() ? "" : invocation.positionals[0];
  const train::RunConfig config = train::load_run_config(file, invocation.overrides);
  calibrate_once(config);
  Console console(stdout, ::isatty(STDOUT_FILENO) == 1, config.train.log_every);
  train::Trainer trainer(config, console);
  const InterruptGuard interrupt;  // until here a signal ends the process: there is no step to save
  console.set_interrupt(interrupt);
  console.on_end(trainer.train());
  return 0;
}

}  // namespace

const Verb& train_verb() {
  static const Verb verb{"train", "train a model on text", "CONFIG.yaml?", {}, true, run};
  return verb;
}

}  // namespace anabatic::cli
