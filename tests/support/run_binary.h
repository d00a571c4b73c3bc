// SPDX-License-Identifier: Apache-2.0
// Runs the `anabatic` binary of this build as a user would, under the suite's configuration
// (support/test_config.h). Verbs that compile get its flags after their arguments, which
// they give way to.
#pragma once
#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/tiny_run.h"

namespace anabatic::testing {

struct Outcome {
  int exit_code = -1;  // -1: ended by a signal
  std::string out, err;
};

// A running binary; killed when it goes without wait().
class Process {
 public:
  explicit Process(const std::vector<std::string>& arguments,
                   const std::string& input = "/dev/null");
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number);
  Outcome wait();
  std::string out_so_far() const;

 private:
  TemporaryDirectory folder_;
  pid_t pid_ = -1;
};

Outcome run_binary(const std::vector<std::string>& arguments,
                   const std::string& input = "/dev/null");

}  // namespace anabatic::testing
