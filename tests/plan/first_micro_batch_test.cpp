// SPDX-License-Identifier: Apache-2.0
// Plans of a first micro-batch whose values lie among gradients, and the verifier against planted
// faults in them.
#include "plan/first_micro_batch.h"

#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "device/topology.h"
#include "plan/offsets.h"
#include "plan/training_fixture.h"

namespace anabatic::testing {
namespace {

class FirstMicroBatch : public ::testing::Test {
 protected:
  static lower::CompileOptions options() {
    lower::CompileOptions options;
    options.micro_batches = 2;
    return options;
  }

  static bool is_among_gradients(const plan::PlannedBuffer& buffer) {
    return buffer.arena == spec::Arena::kGradient && buffer.state < 0 && buffer.bytes > 0;
  }

  // The plan in the smallest frame that is enough.
  std::optional<plan::Plan> tight_plan() const {
    for (std::int64_t bytes = 0; bytes < whole_.plan.frame_bytes; bytes += plan::kAlignmentBytes)
      if (auto plan = plan::plan_among_gradients(whole_.graph, whole_.plan, bytes)) return plan;
    return std::nullopt;
  }

  const lower::Compiled whole_ =
      lower::compile(moe_graph(3, false), options(), device::describe_cpu(1));
};

TEST_F(FirstMicroBatch, HasValuesWhereGradientsAreNotBegun) {
  const auto plan = tight_plan();
  ASSERT_TRUE(plan);
  EXPECT_LT(plan->frame_bytes, whole_.plan.frame_bytes);
  EXPECT_EQ(plan->gradient_bytes, whole_.plan.gradient_bytes);
  int num_among = 0;
  for (std::size_t i = 0; i < plan->buffers.size(); ++i) {
    const plan::PlannedBuffer &now = plan->buffers[i], &then = whole_.plan.buffers[i];
    num_among += is_among_gradients(now);
    if (then.arena != spec::Arena::kFrame) {
      EXPECT_EQ(now.offset, then.offset) << i;
    }
  }
  EXPECT_GT(num_among, 0);
}

TEST_F(FirstMicroBatch, IsNotPlannedWhereItHasNoRoom) {
  const auto plan = tight_plan();
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan::plan_among_gradients(whole_.graph, whole_.plan, plan->frame_bytes - 64));
  plan::Plan without = whole_.plan;
  without.gradient_bytes = 0;
  EXPECT_FALSE(plan::plan_among_gradients(whole_.graph, without, plan->frame_bytes));
}

// Every value among gradients moved onto every gradient that begins before its last reader.
TEST_F(FirstMicroBatch, IsRefusedWhereAGradientWouldBeOverwritten) {
  const auto plan = tight_plan();
  ASSERT_TRUE(plan);
  int num_faults = 0;
  for (std::size_t i = 0; i < plan->buffers.size(); ++i) {
    if (!is_among_gradients(plan->buffers[i])) continue;
    for (const plan::PlannedBuffer& gradient : plan->buffers) {
      if (gradient.arena != spec::Arena::kGradient || gradient.state < 0 ||
          gradient.lifetime.begin + 1 >= plan->buffers[i].lifetime.end ||
          gradient.offset + plan->buffers[i].bytes > plan->gradient_bytes)
        continue;
      plan::Plan bad = *plan;
      bad.buffers[i].offset = gradient.offset;
      EXPECT_THROW(plan::verify(whole_.graph, bad), InternalError) << i;
      ++num_faults;
    }
  }
  EXPECT_GT(num_faults, 0);
}

// Where only its place says that a gradient's arena may hold other values.
TEST_F(FirstMicroBatch, IsRefusedInAPlanOfEveryMicroBatch) {
  auto plan = tight_plan();
  ASSERT_TRUE(plan);
  plan->places = spec::kEveryPlace;
  EXPECT_THROW(plan::verify(whole_.graph, *plan), InternalError);
}

}  // namespace
}  // namespace anabatic::testing
