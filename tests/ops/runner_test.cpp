// SPDX-License-Identifier: Apache-2.0
// Planted faults: a runner that lets one of these kernels pass proves nothing about the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ops/kernel_runner.h"
#include "ops/table.h"
#include "support/comparator.h"

namespace anabatic::testing {
namespace {

const OpCall kCall{.op = "scale",
                   .attributes = {{"factor", 2.0}},
                   .inputs = {{tensor_type(DType::kFloat32, {3}), {1, 2, 3}}},
                   .outputs = {tensor_type(DType::kFloat32, {3})}};

kernels::Kernel planted(void (*run)(const kernels::Arguments&)) {
  return {.name = "planted",
          .op = "scale",
          .supports = [](const spec::Problem&) { return kernels::yes(); },
          .workspace_bytes = [](const spec::Problem&) { return std::int64_t{12}; },
          .prepare = [](const spec::Problem&) { return std::vector<std::byte>(3, std::byte{7}); },
          .run = run};
}

RunResult run(void (*body)(const kernels::Arguments&), const RunOptions& options = {}) {
  return run_kernel(planted(body), *ops::find_op("scale"), kCall, options);
}

void write_all(const kernels::Arguments& args) {
  for (int i = 0; i < 3; ++i) args.outputs[0].as<float>()[i] = 1;
}

TEST(KernelRunner, AcceptsAKernelThatStaysWithinItsBuffers) {
  EXPECT_EQ(run(write_all).violation, "");
  EXPECT_EQ(run(write_all, {.in_place = true}).violation, "");
}

TEST(KernelRunner, SeesAWritePastTheEndOfAnOutput) {
  EXPECT_EQ(run([](const kernels::Arguments& args) {
              write_all(args);
              args.outputs[0].as<float>()[3] = 0;
            }).violation,
            "wrote outside of output 0");
}

TEST(KernelRunner, SeesAWriteBeforeAnOutput) {
  EXPECT_EQ(
      run([](const kernels::Arguments& args) { args.outputs[0].as<float>()[-1] = 0; }).violation,
      "wrote outside of output 0");
}

TEST(KernelRunner, SeesAWritePastTheWorkspace) {
  EXPECT_EQ(
      run([](const kernels::Arguments& args) { args.workspace[12] = std::byte{0}; }).violation,
      "wrote outside of its workspace");
}

TEST(KernelRunner, SeesAChangedInput) {
  EXPECT_EQ(
      run([](const kernels::Arguments& args) { args.inputs[0].as<float>()[1] = 9; }).violation,
      "changed input 0");
}

TEST(KernelRunner, PoisonsOutputsAndWorkspace) {
  const RunResult untouched = run([](const kernels::Arguments& args) {
    EXPECT_TRUE(std::isnan(reinterpret_cast<const float*>(args.workspace)[0]));
  });
  for (const double value : untouched.outputs[0].values().data) EXPECT_TRUE(std::isnan(value));
}

TEST(KernelRunner, PassesPreparedBytesAlignedAndEarlierValues) {
  const std::vector<Values> before{{tensor_type(DType::kFloat32, {3}), {4, 5, 6}}};
  const RunResult result = run(
      [](const kernels::Arguments& args) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(args.prepared) % 64, 0u);
        EXPECT_EQ(static_cast<const std::byte*>(args.prepared)[2], std::byte{7});
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(args.workspace) % 64, 0u);
        EXPECT_TRUE(args.accumulate[0]);
        args.outputs[0].as<float>()[0] += 1;
      },
      {.before = before});
  EXPECT_THAT(result.outputs[0].values().data, ::testing::ElementsAre(5, 5, 6));
}

TEST(KernelRunner, GivesAnInPlaceOutputTheInputsBytes) {
  const RunResult result = run(
      [](const kernels::Arguments& args) {
        EXPECT_EQ(args.inputs[0].data, args.outputs[0].data);
        EXPECT_EQ(args.outputs[0].as<float>()[2], 3);
        write_all(args);
      },
      {.in_place = true});
  EXPECT_EQ(result.violation, "");
}

}  // namespace
}  // namespace anabatic::testing
