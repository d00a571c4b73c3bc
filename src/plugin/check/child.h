// SPDX-License-Identifier: Apache-2.0
// A part of a check in a child process: the plugin may crash, hang or end the process there.
#pragma once
#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "plugin/check/guarded_memory.h"

namespace anabatic::plugin::check {

// The memory of an operand, and what reports call it: "input 0 (x)".
struct Watched {
  const GuardedMemory* memory = nullptr;
  std::string name{};
};

// What a child found. Texts continue a sentence: "[check-op] relu2 forward " + text.
struct Outcome {
  enum class Result { kPassed, kSkipped, kFailed } result = Result::kPassed;
  std::string function{};  // that ran last: "forward"
  std::string note{};      // of that call: "without the gradient of w"; mostly empty
  std::string kind{};      // failures of one kind are reported once
  std::string text{};      // why it was skipped, or what failed
};

// What the child tells its parent.
class Reporter {
 public:
  explicit Reporter(int pipe) : pipe_(pipe) {}
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  // Which function is called next, on which memory. `watched` is read until the next call of this.
  void enter(std::string_view function, std::string_view note, std::span<const Watched> watched);
  // These end the process.
  [[noreturn]] void pass();
  [[noreturn]] void skip(std::string_view why);
  [[noreturn]] void fail(std::string_view kind, std::string_view text);
  // In a handler of signals: allocates nothing.
  [[noreturn]] void fail_at(const void* address);

 private:
  void send(char type, std::string_view first, std::string_view second);

  int pipe_;
  std::span<const Watched> watched_{};
};

// Runs `body` in a child, whose end by a signal, by an exit or after `limit` is a failure. An
// exception of ours in it is one too. The process must have no other threads that hold locks.
Outcome run_in_child(std::chrono::seconds limit, const std::function<void(Reporter&)>& body);

}  // namespace anabatic::plugin::check
