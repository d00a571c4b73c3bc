// SPDX-License-Identifier: Apache-2.0
// `anabatic check-op`: it passes ops that keep to the contract, and names each way to break it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/run_binary.h"
#include "support/scoped_variable.h"

namespace anabatic::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

const std::string kPlugins = ANABATIC_TEST_PLUGINS;

TEST(CheckOp, PassesOpsThatKeepToTheContract) {
  const Outcome outcome = run_binary({"check-op", kPlugins + "good.so"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out,
            "square_relu: 72 cases passed, 0 skipped\n"
            "my_swiglu: 72 cases passed, 0 skipped\n"
            "scaled_norm: 72 cases passed, 0 skipped\n"
            "pick_rows: 102 cases passed, 15 skipped\n"
            "  15 skipped, the first one (f64, R=0 F=0 T=0): infer refuses these types or sizes: "
            "rows have no elements\n"
            "4 ops checked, 0 failed\n");
}

struct Fault {
  const char* counts;   // the op, and what its line says
  const char* message;  // after "[check-op] OP "
  bool has_backward = false;
};

// Cases that pass have no element, or one where the fault needs several. The sizes are in their
// order 7, 64, 1, 33, 0, 1000.
constexpr Fault kFaults[] = {
    {"reads_over: 1 cases passed, 5 failed, 0 skipped",
     "forward touches byte 28 of input 0 (x), which has 28 (f32, N=7)"},
    {"reads_before: 1 cases passed, 5 failed, 0 skipped",
     "forward touches memory 4 bytes before the begin of input 0 (x) (f32, N=7)"},
    {"writes_over: 0 cases passed, 6 failed, 0 skipped",
     "forward writes to byte 28 of output 0 (y), which has 28 (f32, N=7)"},
    {"writes_input: 1 cases passed, 5 failed, 0 skipped",
     "forward writes to input 0 (x) (f32, N=7)"},
    {"leaves_last: 1 cases passed, 5 failed, 0 skipped",
     "forward does not write element 6 of output 0 (y) (f32, N=7)"},
    {"overruns_workspace: 0 cases passed, 6 failed, 0 skipped",
     "forward writes to byte 7 of the workspace, which has 7 (f32, N=7)"},
    {"reads_workspace: 1 cases passed, 5 failed, 0 skipped",
     "forward gives other bits in a second call with the same inputs: element 0 of output 0 (y) is "
     "84.5480957, then -86.4519043 (f32, N=7)"},
    {"keeps_state: 1 cases passed, 5 failed, 0 skipped",
     "forward gives other bits in a second call with the same inputs: element 0 of output 0 (y) is "
     "1, then 2 (f32, N=7)"},
    {"crashes: 0 cases passed, 6 failed, 0 skipped",
     "backward reads or writes near address 0: a null pointer, or one that a write past a local "
     "array has changed (f32, N=7)",
     true},
    {"divides: 0 cases passed, 6 failed, 0 skipped", "forward crashes with SIGFPE (f32, N=7)"},
    {"exits: 0 cases passed, 6 failed, 0 skipped",
     "forward ends the process with exit code 3 (f32, N=7)"},
    {"hangs: 0 cases passed, 1 failed, 0 skipped", "forward takes longer than 1 s (f32, N=7)"},
    {"fails: 0 cases passed, 6 failed, 0 skipped",
     "forward failed: sizes above 0 are too much (f32, N=7)"},
    {"fails_silently: 0 cases passed, 6 failed, 0 skipped",
     "forward failed: it returned 7 and gave no reason (f32, N=7)"},
    {"too_large: 0 cases passed, 6 failed, 0 skipped",
     "infer failed: [too_large] expected y [N] with 7 in dimension 0, got f32[8] (f32, N=7)"},
    {"refuses: 0 cases passed, 6 skipped",
     "has no case to check\n  6 skipped, the first one (f32, N=7): infer refuses these types or "
     "sizes: no size is right"},
    {"negative_cost: 1 cases passed, 5 failed, 0 skipped",
     "cost failed: [negative_cost] cost of faulty.so gave a negative number (f32, N=7)"},
    {"wrong_gradient: 1 cases passed, 5 failed, 0 skipped",
     "backward gives a gradient of x with the derivative -0.988843 in a random direction, finite "
     "differences -0.494421: relative error 0.5 (f32, N=7)",
     true},
    {"writes_absent: 1 cases passed, 5 failed, 0 skipped",
     "backward reads or writes near address 0: a null pointer, or one that a write past a local "
     "array has changed (f32, N=7; without the gradient of a)",
     true},
    {"needs_other: 1 cases passed, 5 failed, 0 skipped",
     "backward gives other bits than with all gradients: element 0 of output 1 (gradient of b) is "
     "0.364277303, then 0 (f32, N=7; without the gradient of a)",
     true},
    {"needs_both: 1 cases passed, 5 failed, 0 skipped",
     "backward gives another result than with zeros: element 0 of output 0 (gradient of x) is 0, "
     "with zeros -1.01579; 6.6e-05 is allowed (f32, N=7; without the gradient of y)",
     true},
    {"wrong_in_bf16: 7 cases passed, 5 failed, 0 skipped",
     "forward gives another result than in f32: element 0 of output 0 (y) is -0.225586, in f32 "
     "-0.451172; 0.055 is allowed (bf16, N=7)"},
};

Outcome check(const std::string& op, const std::string& limit) {
  return run_binary({"check-op", kPlugins + "faulty.so", "--op", op, "--limit", limit});
}

TEST(CheckOp, NamesEachWayToBreakTheContract) {
  for (const Fault& fault : kFaults) {
    const std::string counts = fault.counts, op = counts.substr(0, counts.find(':'));
    const Outcome outcome = check(op, op == "hangs" ? "1" : "60");
    EXPECT_EQ(outcome.exit_code, 1) << op;
    EXPECT_EQ(outcome.err, "") << op;
    const std::string note =
        fault.has_backward ? ""
                           : "  " + op +
                                 " has no backward: gradients are not checked, and a model cannot "
                                 "be trained with it\n";
    EXPECT_EQ(outcome.out, counts + "\n  [check-op] " + op + " " + fault.message + "\n" + note +
                               "1 ops checked, 1 failed\n");
  }
}

TEST(CheckOp, NamesResultsThatDependOnTheThreads) {
  const Outcome outcome = check("by_threads", "60");
  EXPECT_EQ(outcome.exit_code, 1);
  // How many threads it takes, and which element is the first, depends on their turns.
  EXPECT_THAT(outcome.out, ContainsRegex("\n  .check-op. by_threads forward gives other bits on "
                                         "[24] threads than on 1: element "));
}

Outcome check_kernel(const std::string& name) {
  return run_binary({"check-op", kPlugins + "kernels.so", "--op", "plugin:" + name});
}

TEST(CheckOp, PassesKernelsThatKeepToTheContract) {
  for (const char* want :
       {"good_add: 48 cases passed, 0 skipped\n", "good_unpermute: 12 cases passed, 0 skipped\n",
        "good_embedding: 74 cases passed, 4 skipped\n"
        "  4 skipped, the first one (f32, V=0 F=7 R=7): there is no index below 0\n",
        "good_grouped: 39 cases passed, 39 skipped\n"
        "  39 skipped, the first one (bf16, R=7 K=7 N=7): it does not support such a call: only "
        "f32 "
        "is fast\n"}) {
    const std::string counts = want, name = counts.substr(0, counts.find(':'));
    const Outcome outcome = check_kernel(name);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    EXPECT_EQ(outcome.out, "plugin:" + counts + "0 ops and 1 kernels checked, 0 failed\n");
  }
}

// Cases that pass have no element.
constexpr Fault kKernelFaults[] = {
    {"reads_over: 0 cases passed, 48 failed, 0 skipped",
     "run touches byte 196 of input 1 (b), which has 196 (f32, R=7 F=7)"},
    {"writes_over: 0 cases passed, 48 failed, 0 skipped",
     "run writes to byte 196 of output 0 (result), which has 196 (f32, R=7 F=7)"},
    {"writes_input: 10 cases passed, 38 failed, 0 skipped",
     "run writes to input 1 (b) (f32, R=7 F=7)"},
    {"leaves_last: 10 cases passed, 38 failed, 0 skipped",
     "run does not write element 48 of output 0 (result) (f32, R=7 F=7)"},
    {"subtracts: 10 cases passed, 38 failed, 0 skipped",
     "run gives another result than by ref: element 0 of output 0 (result) is -0.735265, by ref "
     "-0.168549; 0.00015 is allowed (f32, R=7 F=7)"},
    {"wrong_in_bf16: 29 cases passed, 19 failed, 0 skipped",
     "run gives another result than by ref: element 0 of output 0 (result) is -0.734375, by ref "
     "-0.167969; 0.08 is allowed (bf16, R=7 F=7)"},
    {"writes_first: 10 cases passed, 38 failed, 0 skipped",
     "run gives other bits where an output has the memory of an input: element 0 of output 0 "
     "(result) is -0.168548733, then 0.283358335 (f32, R=7 F=7; in place of an input)"},
    {"keeps_state: 10 cases passed, 38 failed, 0 skipped",
     "run gives other bits in a second call with the same inputs: element 0 of output 0 (result) "
     "is 1, then 2 (f32, R=7 F=7)"},
    {"overruns_workspace: 0 cases passed, 48 failed, 0 skipped",
     "run writes to byte 5 of the workspace, which has 5 (f32, R=7 F=7)"},
    {"crashes: 0 cases passed, 48 failed, 0 skipped",
     "run reads or writes near address 0: a null pointer, or one that a write past a local array "
     "has changed (f32, R=7 F=7)"},
    {"fails: 0 cases passed, 48 failed, 0 skipped", "run failed: no time (f32, R=7 F=7)"},
    {"crashes_in_supports: 0 cases passed, 48 failed, 0 skipped",
     "supports reads or writes near address 0: a null pointer, or one that a write past a local "
     "array has changed (f32, R=7 F=7)"},
    {"refuses: 0 cases passed, 48 skipped",
     "has no case to check\n  48 skipped, the first one (f32, R=7 F=7): it does not support such a "
     "call: nothing is right"},
};

TEST(CheckOp, NamesEachWayAKernelBreaksTheContract) {
  for (const Fault& fault : kKernelFaults) {
    const std::string counts = fault.counts, name = counts.substr(0, counts.find(':'));
    const Outcome outcome = check_kernel(name);
    EXPECT_EQ(outcome.exit_code, 1) << name;
    EXPECT_EQ(outcome.err, "") << name;
    EXPECT_EQ(outcome.out, "plugin:" + counts + "\n  [check-op] plugin:" + name + " " +
                               fault.message + "\n0 ops and 1 kernels checked, 1 failed\n");
  }
}

TEST(CheckOp, SaysWhichKernelsItCannotCheck) {
  const Outcome outcome = check_kernel("not_checked");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out,
            "plugin:not_checked: not checked, for there are no cases of head_loss\n"
            "0 ops and 0 kernels checked, 0 failed\n");
}

// A name of an op of the engine stands for its kernels.
TEST(CheckOp, ChecksKernelsOfTheModelPlugin) {
  const Outcome outcome = run_binary({"check-op", kPlugins + "model_ops.so", "--op", "activation"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("plugin:my_activation: "));
}

TEST(CheckOp, RefusesWrongArguments) {
  const auto refusal = [](const std::vector<std::string>& arguments) {
    const Outcome outcome = run_binary(arguments);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  };
  const std::string good = kPlugins + "good.so", missing = kPlugins + "missing.so";
  EXPECT_EQ(refusal({"check-op", good, "--op", "nope"}),
            "error: [check-op] good.so has no op or kernel 'nope'; it has square_relu, my_swiglu, "
            "scaled_norm, pick_rows\n");
  EXPECT_EQ(refusal({"check-op", good, "--limit", "0"}),
            "error: [check-op] --limit: expected 1 to 86400 seconds, got 0\n");
  EXPECT_EQ(refusal({"check-op", missing}),
            "error: [plugin] expected a shared library, found no file " + missing + "\n");
}

}  // namespace
}  // namespace anabatic::testing
