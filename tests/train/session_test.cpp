// SPDX-License-Identifier: Apache-2.0
// Derived states of a session: packings and bf16 copies follow their primaries.
#include <gtest/gtest.h>

#include <string>

#include "support/tiny_run.h"
#include "tensor/panels.h"
#include "train/model_session.h"

namespace anabatic::train {
namespace {

using testing::TemporaryDirectory;
using testing::tiny_run;

float value_at(const TensorView& view, std::int64_t i) {
  const std::int64_t at = element_offset(*view.type, i);
  return view.type->dtype == DType::kBFloat16 ? to_float(view.as<const BFloat16>()[at])
                                              : view.as<const float>()[at];
}

// Derived states that differ from their primary somewhere; `total` counts all of them.
int num_stale(ModelSession& session, const BoundProgram& program, int* total) {
  int stale = 0;
  *total = 0;
  for (const ir::State& state : program.compiled.graph.states) {
    if (state.kind != ir::StateKind::kDerived) continue;
    ++*total;
    const TensorView derived = session.store().find(state.name);
    const TensorView primary = session.store().find(*state.derived_from);
    for (std::int64_t i = 0; i < primary.type->num_elements(); ++i) {
      const float value = value_at(primary, i);
      const float want =
          derived.type->dtype == DType::kBFloat16 ? to_float(to_bfloat16_half_away(value)) : value;
      if (value_at(derived, i) == want) continue;
      ++stale;
      break;
    }
  }
  return stale;
}

void negate_parameters(ModelSession& session, const BoundProgram& program) {
  for (const ir::State& state : program.compiled.graph.states) {
    if (state.kind != ir::StateKind::kParameter) continue;
    const TensorView view = session.store().find(state.name);
    for (std::int64_t i = 0; i < view.type->num_elements(); ++i) view.as<float>()[i] *= -1.0f;
  }
}

TEST(DerivedStates, AreRebuiltWhereNoProgramUpdatesThem) {
  for (const char* precision : {"fp32", "bf16"}) {
    SCOPED_TRACE(precision);
    const TemporaryDirectory folder;
    RunConfig run = tiny_run(folder.path());
    run.train.precision = precision;
    ModelSession session(run, false);
    const auto program = session.bind({.name = "evaluation", .build = {.num_tokens = 16}});
    session.load_parameters();
    session.refresh_derived();
    int total = 0;
    EXPECT_EQ(num_stale(session, *program, &total), 0);
    negate_parameters(session, *program);
    const int stale = num_stale(session, *program, &total);
    EXPECT_EQ(stale > 0, total > 0);  // without optional passes fp32 derives nothing
    session.refresh_stale();
    EXPECT_EQ(num_stale(session, *program, &total), 0);
  }
}

// An update has written them already: refreshing must cost nothing.
TEST(DerivedStates, AreLeftToTheProgramThatUpdatesThem) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.train.precision = "bf16";
  ModelSession session(run, false);
  const auto program = session.bind(
      {.name = "training", .build = {.num_tokens = 16}, .training = true, .with_update = true});
  session.load_parameters();
  session.refresh_derived();
  negate_parameters(session, *program);
  int total = 0;
  const int stale = num_stale(session, *program, &total);
  EXPECT_GT(stale, 0);
  session.refresh_stale();
  EXPECT_EQ(num_stale(session, *program, &total), stale);
}

}  // namespace
}  // namespace anabatic::train
