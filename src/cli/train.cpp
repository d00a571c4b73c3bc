// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "anabatic/error.h"
#include "base/log.h"
#include "cli/calibrate_once.h"
#include "cli/console.h"
#include "cli/verb.h"
#include "comm/launcher.h"
#include "comm/mpi_world.h"
#include "report/report.h"
#include "train/trainer.h"

namespace anabatic::cli {
namespace {

std::size_t terminal_columns() {
  winsize size{};
  const bool is_known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20;
  return is_known ? size.ws_col : 100;
}

// The run is done and saved, so a report that cannot be written is only a warning. The trainer's
// memory is free by now, so the process stays within memory.budget here too.
void write_report(const std::filesystem::path& output, Console& console) {
  const std::filesystem::path file = report::file_of(output);
  try {
    report::write_report({output}, file);
    console.on_message(Severity::kInfo, "report: " + file.string());
  } catch (const std::exception& error) {
    log_warning("[report] cannot write {}: {}", file.string(), error.what());
  }
}

// Each process of a launcher would train the whole run by itself, into one directory.
void require_one_rank() {
  const auto process = comm::launched_process();
  if (!process || process->size == 1) return;
  throw Unsupported(fmt::format(
      "[train] expected one process, got {} of a launcher ({} is set): {}; start anabatic without "
      "mpirun or srun",
      process->size, process->variable,
      comm::mpi_library().empty()
          ? "this anabatic was built without MPI, so each would train by itself"
          : "training on several ranks is not there yet, so each would train by itself"));
}

int run(const Invocation& invocation) {
  require_one_rank();
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
  {
    train::Trainer trainer(config, console);
    // Before this point a signal ends the process: there is no step to save.
    const InterruptGuard interrupt;
    console.set_interrupt(interrupt);
    console.on_end(trainer.train());
  }
  write_report(config.train.output, console);
  return 0;
}

}  // namespace

const Verb& train_verb() {
  static const Verb verb{"train", "train a model on text", "CONFIG.yaml?", {}, true, run};
  return verb;
}

}  // namespace anabatic::cli
