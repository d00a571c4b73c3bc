// SPDX-License-Identifier: Apache-2.0
#include "train/derived_states.h"

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

ir::Graph refresh_graph(std::span<const ir::State> states, runtime::StateStore& store) {
  ir::Graph graph;
  graph.name = "refresh";
  ir::GraphBuilder builder(graph, ops::find_op);
  builder.set_tag({.phase = ir::Phase::kUpdate, .segment = intern("optimizer")});
  for (const ir::State& state : states) {
    const Name owner = state.owner;
    if (graph.find_state(owner) == nullptr) {
      builder.state(text(owner), *store.find(owner).type, store.part(owner).role);
      graph.states.back().rows = store.part(owner).rows;
    }
    const TensorType type = *store.find(state.name).type;
    builder.state(text(state.name), type, state.role, owner);
    const ir::ValueId derived =
        passes::add_derivation(builder, graph.find_state(owner)->before, type);
    graph.find_state(state.name)->after = derived;
  }
  return graph;
}

}  // namespace

void refresh_derived(std::span<const ir::State> states, runtime::StateStore& store,
                     device::ThreadTeam& team, const spec::DeviceSpec& device) {
  if (states.empty()) return;
  ir::Graph graph = refresh_graph(states, store);
  lower::CompileOptions options;
  options.training = false;
  options.states_on_disk = names_on_disk(store);
  const lower::Compiled compiled = lower::compile(std::move(graph), options, device);
  runtime::Executor executor(compiled.program, store, team);
  for (const spec::StepEntry& entry : runtime::schedule_of(compiled.program, 1))
    executor.run(entry);
}

}  // namespace anabatic::train
