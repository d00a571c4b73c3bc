// SPDX-License-Identifier: Apache-2.0
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/calibrate_once.h"
#include "cli/console.h"
#include "cli/verb.h"
#include "train/trainer.h"

namespace anabatic::cli {
namespace {

std::size_t terminal_columns() {
  winsize size{};
  const bool is_known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20;
  return is_known ? size.ws_col : 100;
}

int run(const Invocation& invocation) {
  const std::string file = invocation.positionals.empty() ? "" : invocation.positionals[0];
  const train::RunConfig config = train::load_run_config(file, invocation.overrides);
  calibrate_once(config);
  const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  Console console(stdout, {.is_terminal = is_terminal,
                           .columns = is_terminal ? terminal_columns() : 100,
                           .log_every = config.train.log_every,
                           .last_step = config.train.steps,
                           .output = config.train.output});
  const LogScope messages([&](Severity severity, const std::string& text) {
    console.clear_bar();
    print_message(severity, text);
  });
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
