// SPDX-License-Identifier: Apache-2.0
#include "support/run_binary.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "support/test_config.h"
#include "train/config/key_verbs.h"

extern char** environ;

namespace anabatic::testing {

namespace {

std::string flag_of(const std::string& argument) { return argument.substr(0, argument.find('=')); }

bool has_flag(const std::vector<std::string>& arguments, std::string_view flag) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [&](const std::string& argument) { return flag_of(argument) == flag; });
}

bool compiles(const std::vector<std::string>& arguments) {
  // `check` of files, and plans of offsets, compile no step.
  return arguments.size() > 1 && train::reads_key(arguments[0], "compiler.poison") &&
         (arguments[0] != "check" || arguments[1] == "leak") && !has_flag(arguments, "--offsets");
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments, const std::string& input) {
  std::vector<std::string> words{ANABATIC_BINARY_DIR "/anabatic"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  if (compiles(arguments))
    for (const std::string& setting : test_config_settings())
      if (!has_flag(arguments, flag_of("--" + setting))) words.push_back("--" + setting);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  const std::string out = folder_.path() / "out", err = folder_.path() / "err";
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, input.c_str(), O_RDONLY, 0);
  constexpr int kCreate = O_WRONLY | O_CREAT | O_TRUNC;
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), kCreate, 0600);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), kCreate, 0600);
  const int error = ::posix_spawn(&pid_, pointers[0], &actions, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ANABATIC_CHECK(error == 0, "[test] cannot run {}", words[0]);
}

Process::~Process() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Process::signal(int number) { ::kill(pid_, number); }

Outcome Process::wait() {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
          .out = out_so_far(),
          .err = read_file(folder_.path() / "err")};
}

std::string Process::out_so_far() const {
  const auto file = folder_.path() / "out";
  return std::filesystem::exists(file) ? read_file(file) : "";
}

Outcome run_binary(const std::vector<std::string>& arguments, const std::string& input) {
  return Process(arguments, input).wait();
}

}  // namespace anabatic::testing
