// SPDX-License-Identifier: Apache-2.0
// Derived states of a session: packings and bf16 copies follow their primaries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "anabatic/error.h"
#include "support/planned_run.h"
#include "support/tiny_run.h"
#include "tensor/panels.h"
#include "train/model_session.h"
#include "train/replan/carried_states.h"
#include "train/state_rows.h"

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
    if (state.kind() != ir::StateKind::kDerived) continue;
    ++*total;
    const TensorView derived = session.store().find(state.name);
    const TensorView primary = session.store().find(state.owner);
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
    if (state.kind() != ir::StateKind::kParameter) continue;
    const StateRows rows = find_rows(session.store(), state.name);
    for_row_blocks(rows.state.type->num_elements(),
                   [&](std::int64_t first, std::span<float> block) {
                     read_rows(rows, first, block);
                     for (float& value : block) value *= -1.0f;
                     write_rows(rows, first, block);
                   });
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

using Bytes = std::vector<std::byte>;

Bytes rows_of(const runtime::StateStore& store, Name state) {
  Bytes bytes;
  for_row_bytes(find_rows(store, state), [&](std::span<const std::byte> block) {
    bytes.insert(bytes.end(), block.begin(), block.end());
  });
  return bytes;
}

// Parameters and moments by name.
std::map<std::string, Bytes> saved_bytes(ModelSession& session) {
  std::map<std::string, Bytes> result;
  for (const SavedState& saved : session.saved_states())
    result[std::string(text(saved.name))] = rows_of(session.store(), saved.name);
  return result;
}

lower::Compiled planned_step(const RunConfig& run) {
  return std::move(testing::plan_of(run).budgeted.plan.training);
}

TEST(Rebind, KeepsParametersAndMomentsInEveryPrecision) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.train.precision = "fp32";
  ModelSession session(run, false);
  auto program = session.bind(planned_step(run));
  session.load_parameters();
  float value = 0.37f;
  for (const SavedState& saved : session.saved_states()) {
    const StateRows rows = find_rows(session.store(), saved.name);
    for_row_blocks(rows.state.type->num_elements(),
                   [&](std::int64_t first, std::span<float> block) {
                     for (float& each : block) each = value = 3.7f * value * (1 - value);
                     write_rows(rows, first, block);
                   });
  }
  const std::map<std::string, Bytes> want = saved_bytes(session);
  for (const char* precision : {"bf16", "int8", "mixed", "bf16", "fp16", "fp32"}) {
    SCOPED_TRACE(precision);
    run.train.precision = precision;
    program.reset();
    program = session.rebind(run, planned_step(run));
    session.refresh_derived();
    EXPECT_EQ(saved_bytes(session), want);

    // As a session that has been so from its start.
    ModelSession other(run, false);
    const auto others = other.bind(planned_step(run));
    for (const auto& [name, bytes] : want)
      write_row_bytes(find_rows(other.store(), intern(name)), 0, bytes);
    other.refresh_derived();
    ASSERT_EQ(session.store().names(), other.store().names());
    int num_derived = 0;
    for (const ir::State& state : others->compiled.graph.states) {
      if (state.kind() != ir::StateKind::kDerived) continue;
      const TensorView got = session.store().find(state.name);
      const TensorView expected = other.store().find(state.name);
      ASSERT_EQ(*got.type, *expected.type) << text(state.name);
      ++num_derived;
      EXPECT_EQ(
          std::memcmp(got.data, expected.data, static_cast<std::size_t>(got.type->num_bytes())), 0)
          << text(state.name);
    }
    if (run.train.precision != "fp32") {
      EXPECT_GT(num_derived, 0);
    }
  }
}

TEST(Rebind, RefusesStatesOnDiskThatWouldChange) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.train.precision = "bf16";
  run.memory.optimizer_state = run.memory.masters = "disk";
  run.memory.swap_directory = folder.path();
  ModelSession session(run, false);
  const auto program = session.bind(planned_step(run));
  const auto refusal = [&](const char* precision) {
    run.train.precision = precision;
    return refuse_to_carry(planned_step(run).program.states, session.store());
  };
  EXPECT_EQ(refusal("bf16"), "");
  if (!run.compiler.disable_passes.empty()) GTEST_SKIP() << "no parameter is in two states";
  EXPECT_THAT(refusal("fp32"), ::testing::HasSubstr("is on disk, in parts or in a block format"));
}

TEST(StateRows, AreReadAndWrittenInAnyRangesOfAnyLayout) {
  for (const char* text : {"f32[3,17,5]", "f32[3,17,5]@panels", "f32[17,33]@panels_transposed",
                           "bf16[2,19,7]@panels"}) {
    SCOPED_TRACE(text);
    const TensorType type = parse_tensor_type(text);
    const auto size = static_cast<std::size_t>(size_bytes(type.dtype));
    std::vector<std::byte> storage(static_cast<std::size_t>(type.num_bytes()));
    const TensorView view{storage.data(), &type};
    std::vector<std::byte> want(static_cast<std::size_t>(type.num_elements()) * size);
    for (std::size_t i = 0; i < want.size(); ++i) want[i] = static_cast<std::byte>(i * 7 % 251 + 1);
    const auto count = static_cast<std::size_t>(type.num_elements());
    for (std::size_t first = 0, step = 1; first < count; first += step, step = step % 23 + 5)
      write_row_bytes(view, static_cast<std::int64_t>(first),
                      std::span(want).subspan(first * size, std::min(step, count - first) * size));
    for (std::int64_t i = 0; i < type.num_elements(); ++i)
      EXPECT_EQ(
          std::memcmp(storage.data() + static_cast<std::size_t>(element_offset(type, i)) * size,
                      want.data() + static_cast<std::size_t>(i) * size, size),
          0);
    std::vector<std::byte> got, part(size);
    for_row_bytes(view, [&](std::span<const std::byte> block) {
      got.insert(got.end(), block.begin(), block.end());
    });
    EXPECT_EQ(got, want);
    read_row_bytes(view, type.num_elements() - 1, part);
    EXPECT_TRUE(
        std::equal(part.begin(), part.end(), want.end() - static_cast<std::ptrdiff_t>(size)));
    EXPECT_THROW(read_row_bytes(view, type.num_elements(), part), InternalError);
  }
}

TEST(StateRows, OfHalvesAreFloats) {
  for (const char* text : {"bf16[3,17,5]", "bf16[17,33]@panels"}) {
    SCOPED_TRACE(text);
    const TensorType type = parse_tensor_type(text);
    TensorType low_type = type;
    low_type.dtype = DType::kUInt16;
    std::vector<std::byte> high(static_cast<std::size_t>(type.num_bytes())), low(high.size());
    const StateRows rows({high.data(), &type}, {low.data(), &low_type});
    EXPECT_EQ(rows.dtype(), DType::kFloat32);
    const auto count = static_cast<std::size_t>(type.num_elements());
    std::vector<float> want(count), got(count);
    for (std::size_t i = 0; i < count; ++i)
      want[i] = std::bit_cast<float>(static_cast<std::uint32_t>(i * 2654435761u & 0xBFFFFFFFu));
    for (std::size_t first = 0, step = 1; first < count; first += step, step = step % 23 + 5)
      write_rows(rows, static_cast<std::int64_t>(first),
                 std::span(want).subspan(first, std::min(step, count - first)));
    read_rows(rows, 0, got);
    EXPECT_EQ(got, want);
    read_rows(StateRows({high.data(), &type}), 0, got);  // the upper 16 bits alone
    for (std::size_t i = 0; i < count; ++i)
      EXPECT_EQ(got[i], to_float(to_bfloat16_half_away(want[i])));
    std::vector<std::byte> bytes;
    for_row_bytes(rows, [&](std::span<const std::byte> block) {
      bytes.insert(bytes.end(), block.begin(), block.end());
    });
    EXPECT_TRUE(std::ranges::equal(bytes, std::as_bytes(std::span(want))));
  }
}

}  // namespace
}  // namespace anabatic::train
