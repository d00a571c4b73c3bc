// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "cli/plan_offsets.h"
#include "cli/verb.h"

namespace anabatic::cli {
namespace {

int run(const Invocation& invocation) {
  ANABATIC_REQUIRE(invocation.has("--offsets"),
                   "[plan] expected --offsets FILE.csv --capacity N, got neither");
  return plan_offsets(invocation);
}

}  // namespace

const Verb& plan_verb() {
  static const Verb verb{
      "plan",
      "where buffers lie in an arena",
      "",
      {{.name = "--offsets",
        .help = "FILE.csv with columns id, lower, upper, size: prints it with a column offset"},
       {.name = "--capacity", .help = "of the arena for --offsets; exit code 1 if nothing fits"},
       {.name = "--verbose", .help = "print the seconds taken to standard error", .is_flag = true}},
      false,
      run};
  return verb;
}

}  // namespace anabatic::cli
