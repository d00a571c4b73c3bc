// SPDX-License-Identifier: Apache-2.0
#include "train/derived_states.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "ir/op_schema.h"
#include "lower/compile.h"
#include "ops/table.h"
#include "passes/derive.h"
#include "runtime/executor.h"
#include "runtime/state_store.h"
#include "runtime/verify_schedule.h"
#include "train/state_tiers.h"

namespace anabatic::train {
namespace {

constexpr const char* kStep = "step";

// What a state of a sparse layout is made from, in addition to its owner.
void add_sources(ir::Graph& graph, ir::GraphBuilder& builder, const ir::State& sparse,
                 runtime::StateStore& store) {
  using enum ir::StateRole;
  const ir::StateRole role = passes::is_sparse_index(sparse)          ? kMask
                             : sparse.role == kSparseValuesTransposed ? kSparseIndexTransposed
                                                                      : kSparseIndex;
  if (graph.find_state(role, sparse.owner) != nullptr) return;
  const std::string name = spec::state_name(role, text(sparse.owner));
  builder.state(name, *store.find(intern(name)).type, role, sparse.owner);
  graph.states.back().pattern = sparse.pattern;
}

ir::Graph refresh_graph(std::span<const ir::State> states, runtime::StateStore& store,
                        std::int64_t delay) {
  ir::Graph graph;
  graph.name = "refresh";
  ir::GraphBuilder builder(graph, ops::find_op);
  builder.set_tag({.phase = ir::Phase::kUpdate, .segment = intern("optimizer")});
  passes::GridRounding rounding{.delay = delay};
  if (delay > 0) rounding.step = builder.step_input(kStep, tensor_type(DType::kInt32, {}));
  for (const ir::State& state : states) {
    const Name owner = state.owner;
    if (graph.find_state(owner) == nullptr) {
      builder.state(text(owner), *store.find(owner).type, store.part(owner).role);
      graph.states.back().rows = store.part(owner).rows;
      graph.states.back().grid = state.grid;
    }
    const TensorType type = *store.find(state.name).type;
    const bool is_sparse = passes::is_sparse_index(state) || passes::is_sparse_values(state);
    if (is_sparse) add_sources(graph, builder, state, store);
    if (graph.find_state(state.name) == nullptr)
      builder.state(text(state.name), type, state.role, owner);
    ir::State& derived_state = *graph.find_state(state.name);
    derived_state.grid = state.grid;
    derived_state.pattern = state.pattern;
    if (is_sparse) {
      const ir::ValueId made = passes::add_sparse_derivation(
          builder, graph.find_state(owner)->before, ir::State(derived_state));
      graph.find_state(state.name)->after = made;
      continue;
    }
    const ir::ValueId derived = passes::add_derivation(builder, graph.find_state(owner)->before,
                                                       graph.states.back(), rounding);
    graph.find_state(state.name)->after = derived;
  }
  return graph;
}

}  // namespace

void refresh_derived(std::span<const ir::State> states, runtime::StateStore& store,
                     device::ThreadTeam& team, const spec::DeviceSpec& device,
                     const GridPhase& phase) {
  if (states.empty()) return;
  ir::Graph graph = refresh_graph(states, store, phase.delay);
  lower::CompileOptions options;
  options.training = false;
  options.states_on_disk = names_on_disk(store);
  const lower::Compiled compiled = lower::compile(std::move(graph), options, device);
  runtime::Executor executor(compiled.program, store, team);
  if (executor.has_input(kStep)) {
    const auto step = static_cast<std::int32_t>(phase.updates);
    const std::span<std::byte> input = executor.input(kStep);
    ANABATIC_CHECK(input.size() == sizeof step, "[refresh] the step is an i32");
    std::memcpy(input.data(), &step, sizeof step);
  }
  for (const spec::StepEntry& entry : runtime::schedule_of(compiled.program, 1))
    executor.run(entry);
}

}  // namespace anabatic::train
