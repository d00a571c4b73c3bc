// SPDX-License-Identifier: Apache-2.0
#include "lower/lower.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "ir/op_schema.h"
#include "lower/lower_exchanges.h"
#include "lower/lower_leaves.h"
#include "lower/lower_windows.h"
#include "lower/planned_calls.h"
#include "plan/kernel_selection.h"
#include "runtime/verify_schedule.h"

namespace anabatic::lower {
namespace {

// Whether a state lives within a step: gradients, and sums over them.
bool is_of_step(const ir::State& state) { return state.kind() == ir::StateKind::kGradient; }
bool is_gradient(const ir::State& state) { return state.role == ir::StateRole::kGradient; }

// Indexes of a graph's states: gradients into Program::gradients, states that outlive a step into
// Program::states. Sums over gradients (-1) are in neither.
std::vector<std::int32_t> program_states(const ir::Graph& graph) {
  std::vector<std::int32_t> result;
  std::int32_t num_states = 0, num_gradients = 0;
  for (const ir::State& state : graph.states)
    result.push_back(is_gradient(state) ? num_gradients++
                                        : (is_of_step(state) ? -1 : num_states++));
  return result;
}

// runtime::Operand::state for a buffer. A window's is -1, as for any other value of the frame.
std::int32_t state_of(const ir::Graph& graph, const std::vector<std::int32_t>& states,
                      const plan::PlannedBuffer& buffer) {
  if (buffer.state < 0) return -1;
  const auto state = static_cast<std::size_t>(buffer.state);
  return buffer.arena == spec::Arena::kPersistent || is_gradient(graph.states[state])
             ? states[state]
             : -1;
}

// Adds one plan's calls, variants and outputs to a program.
class Lowering {
 public:
  Lowering(const ir::Graph& graph, const plan::Plan& plan, const spec::DeviceSpec& device,
           runtime::Program& program)
      : graph_(graph),
        plan_(plan),
        device_(device),
        program_(program),
        states_(program_states(graph)) {}

  // The parts that all layouts share.
  // Of what ranks share, an optimizer's state that is not cut itself has the rows of its parameter.
  spec::StatePart part_of(const ir::State& state) const {
    spec::StatePart part = state;
    if (state.kind() == ir::StateKind::kOptimizer && state.owner != Name{} && state.rows.is_whole())
      if (const ir::State* parameter = graph_.find_state(state.owner)) part.rows = parameter->rows;
    return part;
  }

  void add_memory() {
    program_.num_threads = device_.num_threads;
    program_.frame_bytes = plan_.frame_bytes;
    program_.gradient_bytes = plan_.gradient_bytes;
    program_.input_bytes = plan_.input_bytes;
    for (const ir::State& state : graph_.states)
      if (is_gradient(state))
        program_.gradients.push_back(state.name);
      else if (!is_of_step(state))
        program_.states.push_back({.name = state.name,
                                   .part = part_of(state),
                                   .type = graph_.value(state.before).type,
                                   .is_on_disk = is_on_disk(graph_, plan_, state)});
    for (const auto* list : {&graph_.batch, &graph_.step_inputs})
      for (ir::ValueId value : *list) {
        program_.inputs.push_back(named(value));
        if (program_.inputs.back().operand.arena == spec::Arena::kExternal)
          program_.externals.push_back(program_.inputs.back());
      }
    program_.num_external_inputs = static_cast<std::int32_t>(program_.externals.size());
    for (const ir::ValueId value : graph_.outputs)
      if (operand(value).arena == spec::Arena::kExternal)
        program_.externals.push_back(named(value));
    add_windows(graph_, plan_, states_, program_);
  }

  void add_outputs(runtime::Layout& layout) const {
    for (ir::ValueId value : graph_.outputs) layout.outputs.push_back(named(value));
    for (const ir::State& state : graph_.states)
      if (is_of_step(state) && !plan_.has_gradients_in_frame() &&
          !graph_.find_output(text(state.name)))
        layout.outputs.push_back({std::string(text(state.name)), operand(state.after)});
  }

  // Without outputs of the update.
  void add_outputs_of_micro_batch(runtime::Layout& layout) const {
    for (const ir::ValueId value : graph_.outputs)
      if (const ir::NodeId producer = graph_.value(value).producer;
          producer != ir::kNoNode && graph_.node(producer).tag.phase != ir::Phase::kUpdate)
        layout.outputs.push_back(named(value));
  }

  // The calls and exchanges of micro-batches at these places, and the variants that run them. Only
  // the first layout has the update.
  void add_variants(spec::Places places, const std::vector<PlannedCall>& calls,
                    std::int32_t layout) {
    const auto first = static_cast<std::int32_t>(program_.calls.size());
    first_exchange_ = static_cast<std::int32_t>(program_.exchanges.size());
    for (const plan::Exchange& exchange : plan_.exchanges)
      program_.exchanges.push_back(lower_exchange(
          graph_.node(exchange.node), [&](ir::ValueId value) { return operand(value); }));
    program_.calls.reserve(program_.calls.size() + calls.size());
    for (const PlannedCall& planned : calls)
      program_.calls.push_back(planned.is_zero_fill ? zero_fill(planned) : call(planned));
    for (const auto& [action, order] : plan_.orders)
      for (const spec::Place place : spec::kPlaces)
        if (places.contains(place) && (layout == 0 || action != spec::Action::kUpdate))
          add_variant(action, variant_at(place, action, calls, first, layout));
  }

  void add_sums_of_leaves() {
    add_leaves(
        graph_, plan_, [&](ir::ValueId value) { return operand(value); }, program_);
  }

 private:
  // In place: a sum of leaves.
  bool writes_a_gradient(const ir::Node& node) const {
    return std::ranges::any_of(node.outputs, [&](ir::ValueId output) {
      const plan::PlannedBuffer& buffer =
          plan_.buffers[static_cast<std::size_t>(plan_.buffer_of_value[index(output)])];
      return buffer.state >= 0 &&
             is_gradient(graph_.states[static_cast<std::size_t>(buffer.state)]);
    });
  }

  runtime::Variant variant_at(spec::Place place, spec::Action action,
                              const std::vector<PlannedCall>& calls, std::int32_t first,
                              std::int32_t layout) const {
    runtime::Variant variant{.places = {place}, .layout = layout};
    std::vector<std::int32_t> positions;  // of its calls
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].action != action || !calls[i].places.contains(place)) continue;
      variant.calls.push_back(first + static_cast<std::int32_t>(i));
      positions.push_back(calls[i].position);
      const ir::Node& node = graph_.node(calls[i].planned->node);
      variant.updates |= node.is_of_update() && !writes_a_gradient(node);
    }
    variant.updates |= action == spec::Action::kUpdate;
    const bool moves_states = action == spec::Action::kUpdate || spec::kStepEnds.contains(place);
    variant.swap_points = swap_points(plan_, action, positions, moves_states);
    variant.exchange_points =
        exchange_points(graph_, plan_, action, place, positions, first_exchange_);
    return variant;
  }

  // Merges the variant with an equal one, if there is one.
  void add_variant(spec::Action action, runtime::Variant variant) {
    std::vector<runtime::Variant>& all = program_.variants[action];
    const auto same = std::find_if(all.begin(), all.end(), [&](const runtime::Variant& other) {
      return other.layout == variant.layout && other.calls == variant.calls &&
             other.swap_points == variant.swap_points &&
             other.exchange_points == variant.exchange_points;
    });
    if (same == all.end())
      all.push_back(std::move(variant));
    else
      same->places = same->places | variant.places;
  }

  runtime::NamedOperand named(ir::ValueId value) const {
    return {std::string(text(graph_.value(value).name)), operand(value)};
  }

  runtime::Operand operand(ir::ValueId value) const {
    const std::int32_t i = plan_.buffer_of_value[index(value)];
    ANABATIC_CHECK(i >= 0, "[lower] value {} has no buffer", index(value));
    const plan::PlannedBuffer& buffer = plan_.buffers[static_cast<std::size_t>(i)];
    return {buffer.arena, state_of(graph_, states_, buffer), buffer.offset,
            graph_.value(value).type};
  }

  std::vector<runtime::Operand> operands(const std::vector<ir::ValueId>& values) const {
    std::vector<runtime::Operand> result;
    result.reserve(values.size());
    for (ir::ValueId value : values) result.push_back(operand(value));
    return result;
  }

  static std::vector<std::byte> prepare(const kernels::Kernel& kernel,
                                        const spec::Problem& problem) {
    return kernel.prepare ? kernel.prepare(problem) : std::vector<std::byte>{};
  }

  runtime::Call call(const PlannedCall& what) const {
    const plan::PlannedNode& planned = *what.planned;
    const ir::Node& node = graph_.node(planned.node);
    const plan::NodeTypes types = plan::node_types(graph_, node);
    return {.kernel = planned.kernel,
            .attributes = node.attributes,
            .inputs = operands(node.inputs),
            .outputs = operands(node.outputs),
            .adds = what.adds,
            .workspace_offset = planned.workspace_offset,
            .workspace_bytes = planned.workspace_bytes,
            .workspace_arena = planned.workspace_arena,
            .prepared = prepare(*planned.kernel, {.op = intern(node.op->name),
                                                  .attributes = &node.attributes,
                                                  .inputs = types.inputs,
                                                  .outputs = types.outputs,
                                                  .device = &device_}),
            .label = plan::node_label(node)};
  }

  runtime::Call zero_fill(const PlannedCall& what) const {
    const plan::PlannedNode& planned = *what.planned;
    const ir::Node& node = graph_.node(planned.node);
    const std::vector<TensorType> types = plan::node_types(graph_, node).outputs;
    runtime::Call result{.kernel = planned.zero_kernel,
                         .attributes = plan::zero_fill_attributes(types.front()),
                         .outputs = {operand(node.outputs.front())},
                         .adds = what.adds,
                         .label = plan::node_label(node) + " zero fill"};
    result.prepared = prepare(*planned.zero_kernel, {.op = intern("fill"),
                                                     .attributes = &result.attributes,
                                                     .inputs = {},
                                                     .outputs = types,
                                                     .device = &device_});
    return result;
  }

  const ir::Graph& graph_;
  const plan::Plan& plan_;
  const spec::DeviceSpec& device_;
  runtime::Program& program_;
  std::vector<std::int32_t> states_;
  std::int32_t first_exchange_ = 0;  // index into Program::exchanges: of this plan's
};

void check_operands(const ir::Graph& graph, const plan::Plan& plan,
                    const std::vector<std::int32_t>& states, const std::vector<ir::ValueId>& values,
                    const std::vector<runtime::Operand>& operands, const std::string& label) {
  ANABATIC_CHECK(values.size() == operands.size(), "[lower verifier] {}: {} operands, {} planned",
                 label, operands.size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const plan::PlannedBuffer& buffer =
        plan.buffers[static_cast<std::size_t>(plan.buffer_of_value[index(values[i])])];
    const runtime::Operand& operand = operands[i];
    ANABATIC_CHECK(operand.arena == buffer.arena && operand.offset == buffer.offset &&
                       operand.type == graph.value(values[i]).type &&
                       operand.state == state_of(graph, states, buffer),
                   "[lower verifier] {}: operand {} is not at the planned address", label, i);
  }
}

// Whether a micro-batch at this place adds to the output rather than assigning it.
bool adds_at(spec::Place place, plan::WriteMode mode) {
  switch (mode) {
    case plan::WriteMode::kAssign:
      return false;
    case plan::WriteMode::kAccumulate:
      return true;
    case plan::WriteMode::kFirstAssigns:
      break;
  }
  return !spec::kLeafBegins.contains(place);
}

bool zeroes_at(spec::Place place, plan::ZeroFill fill) {
  return fill == plan::ZeroFill::kAlways ||
         (fill == plan::ZeroFill::kFirstMicroBatch && spec::kLeafBegins.contains(place));
}

// Compares a program with its plan.
class CallsVerifier {
 public:
  CallsVerifier(const ir::Graph& graph, const plan::Plan& plan, const runtime::Program& program)
      : graph_(graph), plan_(plan), program_(program), states_(program_states(graph)) {}

  // Throws unless a micro-batch at this place runs the planned calls of an action.
  void check(spec::Action action, spec::Place place, const runtime::Variant& variant) {
    calls_ = variant.calls;
    for (const plan::PlannedNode& planned : plan_.orders.at(action)) {
      const ir::Node& node = graph_.node(planned.node);
      const bool waits = action != spec::Action::kUpdate && node.is_of_update() &&
                         !spec::kStepEnds.contains(place);
      if (!planned.is_call() || waits) continue;
      if (zeroes_at(place, planned.zero_fill)) check_fill(action, planned, node);
      check_call(action, place, planned, node);
    }
    ANABATIC_CHECK(calls_.empty(), "[lower verifier] {} has calls beyond the plan",
                   spec::to_string(action));
  }

 private:
  const runtime::Call& next(spec::Action action) {
    ANABATIC_CHECK(!calls_.empty(), "[lower verifier] {} lacks calls", spec::to_string(action));
    const runtime::Call& call = program_.calls.at(static_cast<std::size_t>(calls_.front()));
    calls_ = calls_.subspan(1);
    return call;
  }

  void check_fill(spec::Action action, const plan::PlannedNode& planned, const ir::Node& node) {
    const runtime::Call& fill = next(action);
    ANABATIC_CHECK(fill.kernel == planned.zero_kernel && fill.adds == std::vector<bool>{false},
                   "[lower verifier] {} is not the planned zero fill", fill.label);
    check_operands(graph_, plan_, states_, {node.outputs.front()}, fill.outputs, fill.label);
  }

  void check_call(spec::Action action, spec::Place place, const plan::PlannedNode& planned,
                  const ir::Node& node) {
    const runtime::Call& call = next(action);
    const bool adds_as_planned =
        std::equal(planned.modes.begin(), planned.modes.end(), call.adds.begin(), call.adds.end(),
                   [&](plan::WriteMode mode, bool adds) { return adds == adds_at(place, mode); });
    ANABATIC_CHECK(call.kernel == planned.kernel && adds_as_planned &&
                       call.workspace_offset == planned.workspace_offset &&
                       call.workspace_bytes == planned.workspace_bytes &&
                       call.workspace_arena == planned.workspace_arena &&
                       call.attributes == node.attributes,
                   "[lower verifier] {} is not the planned call", call.label);
    check_operands(graph_, plan_, states_, node.inputs, call.inputs, call.label);
    check_operands(graph_, plan_, states_, node.outputs, call.outputs, call.label);
  }

  const ir::Graph& graph_;
  const plan::Plan& plan_;
  const runtime::Program& program_;
  std::vector<std::int32_t> states_;
  std::span<const std::int32_t> calls_;  // those still to be checked
};

// Throws unless exactly one variant is for this place.
const runtime::Variant& variant_for(const runtime::Program& program, spec::Action action,
                                    spec::Place place) {
  const runtime::Variant* result = nullptr;
  for (const runtime::Variant& variant : program.variants.at(action)) {
    if (!variant.places.contains(place)) continue;
    ANABATIC_CHECK(result == nullptr, "[lower verifier] {} has two variants for the {} micro-batch",
                   spec::to_string(action), to_string(place));
    result = &variant;
  }
  ANABATIC_CHECK(result != nullptr, "[lower verifier] {} has no variant for the {} micro-batch",
                 spec::to_string(action), to_string(place));
  return *result;
}

// The micro-batches that run in a layout.
spec::Places places_of_layout(const runtime::Program& program, std::int32_t layout) {
  spec::Places places;
  for (const auto& [action, variants] : program.variants)
    for (const runtime::Variant& variant : variants)
      if (variant.layout == layout && action != spec::Action::kUpdate)
        places = places | variant.places;
  return places;
}

// Leaves of one to four micro-batches have every place and every pair of neighbours.
void verify_schedules(const runtime::Program& program, spec::Places places) {
  if (places.contains(spec::Place::kOnly)) (void)runtime::schedule_of(program, program.leaves);
  if (!places.contains(spec::Place::kMiddle)) return;
  for (const std::int64_t num_micro_batches : {2, 3, 4})
    (void)runtime::schedule_of(program, num_micro_batches * program.leaves);
}

// Throws unless gradients, states and inputs of the first micro-batch are where the other
// micro-batches have them.
void check_shared(const ir::Graph& graph, const plan::Plan& plan, const runtime::Program& program) {
  ANABATIC_CHECK(program.frame_bytes == plan.frame_bytes &&
                     program.gradient_bytes == plan.gradient_bytes &&
                     program.input_bytes == plan.input_bytes,
                 "[lower verifier] arenas of the first micro-batch are not the program's");
  const auto buffer = [&](ir::ValueId value) -> const plan::PlannedBuffer& {
    return plan.buffers[static_cast<std::size_t>(plan.buffer_of_value[index(value)])];
  };
  const auto offset_of = [&](const std::vector<runtime::NamedOperand>& list,
                             std::string_view name) {
    for (const runtime::NamedOperand& named : list)
      if (named.name == name) return named.operand.offset;
    return std::int64_t{-1};
  };
  std::size_t next = 0, next_gradient = 0;
  for (const ir::State& state : graph.states) {
    if (is_of_step(state)) {
      const std::int64_t offset = offset_of(program.layouts.front().outputs, text(state.name));
      const bool is_same =
          !is_gradient(state) || (next_gradient < program.gradients.size() &&
                                  program.gradients[next_gradient++] == state.name);
      ANABATIC_CHECK(is_same && offset == buffer(state.after).offset,
                     "[lower verifier] {} is not where the first micro-batch leaves it",
                     text(state.name));
      continue;
    }
    ANABATIC_CHECK(next < program.states.size() && program.states[next].name == state.name &&
                       !program.states[next].is_on_disk,
                   "[lower verifier] the first micro-batch has a state {} that the program lacks",
                   text(state.name));
    ++next;
  }
  for (const auto* list : {&graph.batch, &graph.step_inputs})
    for (const ir::ValueId value : *list)
      ANABATIC_CHECK(
          offset_of(program.inputs, text(graph.value(value).name)) == buffer(value).offset,
          "[lower verifier] input {} is not where the first micro-batch reads it",
          text(graph.value(value).name));
}

}  // namespace

runtime::Program lower(const ir::Graph& graph, const plan::Plan& plan,
                       const spec::DeviceSpec& device) {
  runtime::Program program;
  Lowering lowering(graph, plan, device, program);
  lowering.add_memory();
  lowering.add_outputs(program.layouts.front());
  lowering.add_variants(plan.places, planned_calls(graph, plan, plan.places), 0);
  lowering.add_sums_of_leaves();
  verify(graph, plan, program);
  return program;
}

runtime::Program lower(const search::PlannedStep& step, const spec::DeviceSpec& device) {
  if (!step.first) return lower(step.graph, step.plan, device);
  const std::vector<PlannedLayout> layouts = planned_layouts(step);
  runtime::Program program;
  Lowering others(step.graph, step.plan, device, program);
  others.add_memory();
  others.add_outputs(program.layouts.front());
  others.add_variants(layouts[0].places, layouts[0].calls, 0);
  Lowering first(step.first->graph, step.first->plan, device, program);
  first.add_outputs_of_micro_batch(program.layouts.emplace_back());
  first.add_variants(layouts[1].places, layouts[1].calls, 1);
  others.add_sums_of_leaves();
  verify(step.graph, step.plan, program);
  verify_first(step.first->graph, step.first->plan, program);
  return program;
}

void verify(const ir::Graph& graph, const plan::Plan& plan, const runtime::Program& program) {
  ANABATIC_CHECK(program.frame_bytes == plan.frame_bytes &&
                     program.gradient_bytes == plan.gradient_bytes &&
                     program.input_bytes == plan.input_bytes,
                 "[lower verifier] arenas are not of the planned bytes");
  const std::size_t actions =
      program.variants.size() - program.variants.count(spec::Action::kSumLeaf);
  ANABATIC_CHECK(actions == plan.orders.size(), "[lower verifier] {} actions, {} planned", actions,
                 plan.orders.size());
  CallsVerifier verifier(graph, plan, program);
  for (const auto& [action, order] : plan.orders)
    for (const runtime::Variant& variant : program.variants.at(action))
      for (const spec::Place place : spec::kPlaces)
        if (variant.layout == 0 && variant.places.contains(place))
          verifier.check(action, place, variant_for(program, action, place));
  verify_windows(graph, plan, program_states(graph), program);
  verify_exchanges(graph, plan, plan.places - places_of_layout(program, 1), 0, program);
  verify_schedules(program, plan.places);
}

void verify_first(const ir::Graph& graph, const plan::Plan& plan, const runtime::Program& program) {
  check_shared(graph, plan, program);
  CallsVerifier verifier(graph, plan, program);
  for (const spec::Action action : {spec::Action::kForward, spec::Action::kBackward}) {
    const runtime::Variant& variant = variant_for(program, action, spec::Place::kFirst);
    ANABATIC_CHECK(variant.layout == 1 && variant.swap_points.empty(),
                   "[lower verifier] {} of the first micro-batch is not its own",
                   spec::to_string(action));
    verifier.check(action, spec::Place::kFirst, variant);
  }
  verify_exchanges(graph, plan, places_of_layout(program, 1),
                   static_cast<std::int32_t>(program.exchanges.size() - plan.exchanges.size()),
                   program);
}

}  // namespace anabatic::lower
