// SPDX-License-Identifier: Apache-2.0
#include "train/api/model_states.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/state_rows.h"
#include "train/state_tiers.h"

namespace anabatic::train {
namespace {

const SavedState& find_saved(const ModelSession& model, const std::string& name) {
  for (const SavedState& state : model.saved_states())
    if (text(state.name) == name && !state.scales_of) return state;
  throw InvalidArgument(
      fmt::format("[states] expected the name of a state (states()), got '{}'", name));
}

// Calls body(name of a state of the store, first element in it, values of it).
template <class Value, class Body>
void for_parts(ModelSession& model, const SavedState& state, std::int64_t first,
               std::span<Value> values, Body&& body) {
  const auto count = static_cast<std::int64_t>(values.size());
  const std::int64_t total = state.type.num_elements();
  ANABATIC_REQUIRE(first >= 0 && count <= total && first <= total - count,
                   "[states] {}: expected elements within {}, got [{}, {})", text(state.name),
                   total, first, first + count);
  if (state.type.dtype != DType::kFloat32 && state.type.dtype != DType::kBFloat16)
    throw Unsupported(
        fmt::format("[states] {} is {}: only f32 and bf16 states can be read or written",
                    text(state.name), to_string(state.type.dtype)));
  if (state.slices.empty()) return body(state.name, first, values);
  std::int64_t begin = 0;
  for (const Name slice : state.slices) {
    const std::int64_t end = begin + model.store().find(slice).type->num_elements();
    const std::int64_t from = std::max(first, begin), to = std::min(first + count, end);
    if (from < to)
      body(slice, from - begin,
           values.subspan(static_cast<std::size_t>(from - first),
                          static_cast<std::size_t>(to - from)));
    begin = end;
  }
}

}  // namespace

std::vector<StateInfo> list_states(ModelSession& model) {
  std::vector<StateInfo> states;
  for (const SavedState& state : model.saved_states()) {
    if (state.scales_of) continue;
    const Name part = state.slices.empty() ? state.name : state.slices.front();
    const spec::StatePart about = model.store().part(part);
    states.push_back(
        {.name = std::string(text(state.name)),
         .role = about.role,
         .parameter = std::string(text(spec::has_owner(about.role) ? about.owner : state.name)),
         .dtype = std::string(to_string(state.type.dtype)),
         .shape = state.type.shape});
  }
  return states;
}

void read_state(ModelSession& model, const std::string& name, std::int64_t first,
                std::span<float> values) {
  StateCursor cursor(model.store());
  for_parts(
      model, find_saved(model, name), first, values,
      [&](Name part, std::int64_t at, std::span<float> block) { cursor.read(part, at, block); });
}

void write_state(ModelSession& model, const std::string& name, std::int64_t first,
                 std::span<const float> values) {
  const SavedState& state = find_saved(model, name);
  if (state.type.dtype != DType::kFloat32)
    throw Unsupported(fmt::format("[states] {} is {}: only f32 states can be written", name,
                                  to_string(state.type.dtype)));
  StateCursor cursor(model.store());
  for_parts(model, state, first, values,
            [&](Name part, std::int64_t at, std::span<const float> block) {
              cursor.write(part, at, block);
            });
  cursor.flush();
}

std::span<const float> view_state(ModelSession& model, const std::string& name) {
  const SavedState& state = find_saved(model, name);
  if (!state.slices.empty() || state.type.dtype != DType::kFloat32 ||
      !is_in_memory_whole(model.store(), state.name))
    return {};
  const StateRows rows = find_rows(model.store(), state.name);
  if (rows.is_split() || rows.state.type->layout != kRowMajor ||
      rows.state.type->dtype != DType::kFloat32)
    return {};
  return {reinterpret_cast<const float*>(rows.state.data),
          static_cast<std::size_t>(state.type.num_elements())};
}

}  // namespace anabatic::train
