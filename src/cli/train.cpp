// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#include "anabatic/error.h"
#include "base/log.h"
#include "cli/calibrate_once.h"
#include "cli/console.h"
#include "cli/verb.h"
#include "comm/launcher.h"
#include "comm/mpi_world.h"
#include "report/report.h"
#include "train/ranks/follower.h"
#include "train/trainer.h"

namespace anabatic::cli {
namespace {

constexpr std::chrono::seconds kTimeToPrint{1};

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

// The ranks of a launcher; null: this process trains by itself.
std::unique_ptr<comm::MpiWorld> start_ranks() {
  const auto process = comm::launched_process();
  if (!process || process->size == 1) return nullptr;
  if (comm::mpi_library().empty())
    throw Unsupported(fmt::format(
        "[train] expected one process, got {} of a launcher ({} is set): this anabatic was built "
        "without MPI, so each would train by itself; start it without mpirun or srun, or build it "
        "with -DANABATIC_MPI=ON",
        process->size, process->variable));
  auto world = std::make_unique<comm::MpiWorld>();
  if (world->size() != process->size)
    throw Unsupported(fmt::format(
        "[train] expected one process, got {} of a launcher ({} is set), of which {} sees {}: each "
        "would train by itself; start it with the launcher of this MPI",
        process->size, process->variable, comm::mpi_library(), world->size()));
  return world;
}

void train_here(const train::RunConfig& config, comm::MpiWorld* world) {
  calibrate_once(config);
  // A launcher gives its processes a terminal and prints what they write wherever it writes.
  const bool is_terminal = world == nullptr && ::isatty(STDOUT_FILENO) == 1;
  Console console(stdout, {.is_terminal = is_terminal,
                           .columns = is_terminal ? terminal_columns() : 100,
                           .log_every = config.train.log_every,
                           .last_step = config.train.steps,
                           .output = config.train.output,
                           .has_replaced_ops = !config.model.replace.empty(),
                           .trains_adapter = train::trains_adapter(config)});
  const LogScope messages([&](Severity severity, const std::string& text) {
    console.clear_bar();
    print_message(severity, text);
  });
  {
    train::Trainer trainer(config, console, {}, world);
    // Before this point a signal ends the process: there is no step to save.
    const InterruptGuard interrupt;
    console.set_interrupt(interrupt);
    console.on_end(trainer.train());
  }
  write_report(config.train.output, console);
}

// Errors are the first rank's to print, as all ranks end with one text. Unless it is dead: then the
// second one prints.
bool prints(std::int32_t rank, std::string_view error) {
  const bool first_is_dead = error.find("rank 0 (") != std::string_view::npos;
  return rank == (first_is_dead ? 1 : 0);
}

// A launcher that ends all ranks because one has died leaves a second: to say which, and no more.
void name_the_dead_at_once(comm::MpiWorld& world) {
  world.set_ending({.is_asked = InterruptGuard::is_terminated,
                    .on_death = [rank = world.rank()](const std::string& text) {
                      if (!prints(rank, text)) return;
                      std::fprintf(stderr, "error: %s\n", text.c_str());
                      std::_Exit(1);
                    }});
}

int follow_first(const train::RunConfig& config, comm::MpiWorld& world) {
  const InterruptGuard interrupt;
  try {
    train::follow(config, world, [&] { return interrupt.requested(); });
    return 0;
  } catch (const std::exception& error) {
    if (prints(world.rank(), error.what())) std::fprintf(stderr, "error: %s\n", error.what());
    // A launcher ends all processes once one has failed.
    std::this_thread::sleep_for(kTimeToPrint);
    return 1;
  }
}

int run_train(const Invocation& invocation) {
  const std::unique_ptr<comm::MpiWorld> world = start_ranks();
  const std::string file = invocation.positionals.empty() ? "" : invocation.positionals[0];
  train::RunConfig config = train::load_run_config(file, invocation.overrides);
  if (world == nullptr) {
    train_here(config, nullptr);
    return 0;
  }
  config = train::of_processes(std::move(config), world->size());
  name_the_dead_at_once(*world);
  int code = 0;
  if (world->rank() == 0)
    train_here(config, world.get());
  else
    code = follow_first(config, *world);
  if (code == 0) world->finalize();
  return code;
}

}  // namespace

const Verb& train_verb() {
  static const Verb verb{"train", "train a model on text", "CONFIG.yaml?", {}, true, run_train};
  return verb;
}

}  // namespace anabatic::cli
