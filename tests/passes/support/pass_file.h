// SPDX-License-Identifier: Apache-2.0
// A text-in/text-out test of one pass:
//
//   # What it shows.
//   # option precision=bf16            (KEY=VALUE, see pass_file.cpp)
//   # ---- input
//   graph "..." ...
//   # ---- expected                    (or: # ---- expected error, then a fragment of its message)
//   graph "..." ...
//
// Both graphs are compared as the printer prints them, so spacing and numbers are free.
#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "passes/pass.h"

namespace anabatic::passes {

struct PassFile {
  PassContext context{};
  // What the context's options point at.
  std::shared_ptr<HeldStates> held_states = std::make_shared<HeldStates>();
  std::shared_ptr<StateNames> on_disk = std::make_shared<StateNames>();
  std::shared_ptr<ExpertCuts> expert_cuts = std::make_shared<ExpertCuts>();
  std::shared_ptr<GradientRequest> gradients = std::make_shared<GradientRequest>();
  std::shared_ptr<spec::Decisions> decisions = std::make_shared<spec::Decisions>();
  bool is_idempotent = true;  // a second run must say "unchanged"; `option idempotent=no` lifts it
  bool expects_error = false;
  std::string input, expected;
};

// InvalidArgument naming the file when it has not this form.
PassFile read_pass_file(const std::filesystem::path& path);

// Runs `pass` through the runner, which verifies, and compares. Returns what is wrong, with a diff;
// empty when all is well.
std::string check_pass_file(const Pass& pass, const PassFile& file);

}  // namespace anabatic::passes
