// SPDX-License-Identifier: Apache-2.0
#include "lower/lower.h"

#include "base/error.h"
#include "ir/op_schema.h"
#include "lower/lower_windows.h"
#include "plan/kernel_selection.h"

namespace anabatic::lower {
namespace {

// Graph states that live in the store, by their index in Program::states; -1 for gradients.
std::vector<std::int32_t> program_states(const ir::Graph& graph) {
  std::vector<std::int32_t> result;
  std::int32_t next = 0;
  for (const ir::State& state : graph.states)
    result.push_back(state.kind() == ir::StateKind::kGradient ? -1 : next++);
  return result;
}

// With one micro-batch a step, it is the last one whoever runs it.
bool is_only_last(const plan::Plan& plan, const ir::Node& node) {
  return !plan.single_micro_batch && node.is_of_update();
}

class Lowering {
 public:
  Lowering(const ir::Graph& graph, const plan::Plan& plan, const spec::DeviceSpec& device)
      : graph_(graph), plan_(plan), device_(device), states_(program_states(graph)) {}

  runtime::Program run() {
    runtime::Program program;
    program.num_threads = device_.num_threads;
    program.frame_bytes = plan_.frame_bytes;
    program.gradient_bytes = plan_.gradient_bytes;
    program.input_bytes = plan_.input_bytes;
    program.single_micro_batch = plan_.single_micro_batch;
    for (const ir::State& state : graph_.states)
      if (state.kind() != ir::StateKind::kGradient)
        program.states.push_back({.name = state.name,
                                  .part = state,
                                  .type = graph_.value(state.before).type,
                                  .is_on_disk = is_on_disk(graph_, plan_, state)});
    for (const auto* list : {&graph_.batch, &graph_.step_inputs})
      for (ir::ValueId value : *list) program.inputs.push_back(named(value));
    for (ir::ValueId value : graph_.outputs) program.outputs.push_back(named(value));
    for (const ir::State& state : graph_.states)
      if (state.kind() == ir::StateKind::kGradient && !plan_.single_micro_batch &&
          !graph_.find_output(text(state.name)))
        program.outputs.push_back({std::string(text(state.name)), operand(state.after)});
    for (const auto& [action, order] : plan_.orders) program.calls[action] = calls(order);
    add_windows(graph_, plan_, states_, program);
    return program;
  }

  runtime::FirstMicroBatch run_first() {
    runtime::FirstMicroBatch first;
    for (const auto& [action, order] : plan_.orders)
      if (action != spec::Action::kUpdate) first.calls[action] = calls(order);
    for (const ir::ValueId value : graph_.outputs)
      if (const ir::NodeId producer = graph_.value(value).producer;
          producer != ir::kNoNode && graph_.node(producer).tag.phase != ir::Phase::kUpdate)
        first.outputs.push_back(named(value));
    return first;
  }

 private:
  std::vector<runtime::Call> calls(const std::vector<plan::PlannedNode>& order) const {
    std::vector<runtime::Call> result;
    for (const plan::PlannedNode& planned : order) {
      if (planned.is_offloaded) continue;
      if (planned.zero_fill != plan::ZeroFill::kNone) result.push_back(zero_fill(planned));
      result.push_back(call(planned));
    }
    return result;
  }

  runtime::NamedOperand named(ir::ValueId value) const {
    return {std::string(text(graph_.value(value).name)), operand(value)};
  }

  runtime::Operand operand(ir::ValueId value) const {
    const std::int32_t i = plan_.buffer_of_value[index(value)];
    ANABATIC_CHECK(i >= 0, "[lower] value {} has no buffer", index(value));
    const plan::PlannedBuffer& buffer = plan_.buffers[static_cast<std::size_t>(i)];
    const std::int32_t state = buffer.arena == spec::Arena::kPersistent
                                   ? states_[static_cast<std::size_t>(buffer.state)]
                                   : -1;
    return {buffer.arena, state, buffer.offset, graph_.value(value).type};
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

  runtime::Call call(const plan::PlannedNode& planned) const {
    const ir::Node& node = graph_.node(planned.node);
    const plan::NodeTypes types = plan::node_types(graph_, node);
    return {.kernel = planned.kernel,
            .attributes = node.attributes,
            .inputs = operands(node.inputs),
            .outputs = operands(node.outputs),
            .modes = planned.modes,
            .workspace_offset = planned.workspace_offset,
            .workspace_bytes = planned.workspace_bytes,
            .workspace_arena = planned.workspace_arena,
            .prepared = prepare(*planned.kernel, {.op = intern(node.op->name),
                                                  .attributes = &node.attributes,
                                                  .inputs = types.inputs,
                                                  .outputs = types.outputs,
                                                  .device = &device_}),
            .only_last_micro_batch = is_only_last(plan_, node),
            .label = plan::node_label(node)};
  }

  runtime::Call zero_fill(const plan::PlannedNode& planned) const {
    const ir::Node& node = graph_.node(planned.node);
    const std::vector<TensorType> types = plan::node_types(graph_, node).outputs;
    runtime::Call result{
        .kernel = planned.zero_kernel,
        .attributes = plan::zero_fill_attributes(types.front()),
        .outputs = {operand(node.outputs.front())},
        .modes = {spec::WriteMode::kAssign},
        .only_first_micro_batch = planned.zero_fill == plan::ZeroFill::kFirstMicroBatch,
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
  std::vector<std::int32_t> states_;
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
    const bool is_persistent = buffer.arena == spec::Arena::kPersistent;
    ANABATIC_CHECK(
        operand.arena == buffer.arena && operand.offset == buffer.offset &&
            operand.type == graph.value(values[i]).type &&
            operand.state == (is_persistent ? states[static_cast<std::size_t>(buffer.state)] : -1),
        "[lower verifier] {}: operand {} is not at the planned address", label, i);
  }
}

// Whether the calls are those of an action as planned.
void check_calls(const ir::Graph& graph, const plan::Plan& plan,
                 const std::vector<std::int32_t>& states, spec::Action action,
                 const std::vector<runtime::Call>& calls) {
  std::size_t next = 0;
  for (const plan::PlannedNode& planned : plan.orders.at(action)) {
    if (planned.is_offloaded) continue;
    const ir::Node& node = graph.node(planned.node);
    const bool zeroes = planned.zero_fill != plan::ZeroFill::kNone;
    ANABATIC_CHECK(next + zeroes < calls.size(), "[lower verifier] {} lacks calls",
                   spec::to_string(action));
    if (zeroes) {
      const runtime::Call& fill = calls[next++];
      ANABATIC_CHECK(fill.kernel == planned.zero_kernel &&
                         fill.only_first_micro_batch ==
                             (planned.zero_fill == plan::ZeroFill::kFirstMicroBatch),
                     "[lower verifier] {} is not the planned zero fill", fill.label);
      check_operands(graph, plan, states, {node.outputs.front()}, fill.outputs, fill.label);
    }
    const runtime::Call& call = calls[next++];
    ANABATIC_CHECK(call.kernel == planned.kernel && call.modes == planned.modes &&
                       call.workspace_offset == planned.workspace_offset &&
                       call.workspace_bytes == planned.workspace_bytes &&
                       call.workspace_arena == planned.workspace_arena &&
                       !call.only_first_micro_batch &&
                       call.only_last_micro_batch == is_only_last(plan, node) &&
                       call.attributes == node.attributes,
                   "[lower verifier] {} is not the planned call", call.label);
    check_operands(graph, plan, states, node.inputs, call.inputs, call.label);
    check_operands(graph, plan, states, node.outputs, call.outputs, call.label);
  }
  ANABATIC_CHECK(next == calls.size(), "[lower verifier] {} has calls beyond the plan",
                 spec::to_string(action));
}

// What a first micro-batch leaves for the others, and what it takes from them, lies where they have
// it.
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
  std::size_t next = 0;
  for (const ir::State& state : graph.states) {
    if (state.kind() == ir::StateKind::kGradient) {
      const std::int64_t offset = offset_of(program.outputs, text(state.name));
      ANABATIC_CHECK(offset == buffer(state.after).offset,
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
  return Lowering(graph, plan, device).run();
}

runtime::FirstMicroBatch lower_first(const ir::Graph& graph, const plan::Plan& plan,
                                     const spec::DeviceSpec& device) {
  return Lowering(graph, plan, device).run_first();
}

void verify(const ir::Graph& graph, const plan::Plan& plan, const runtime::Program& program) {
  ANABATIC_CHECK(program.frame_bytes == plan.frame_bytes &&
                     program.gradient_bytes == plan.gradient_bytes &&
                     program.input_bytes == plan.input_bytes &&
                     program.single_micro_batch == plan.single_micro_batch,
                 "[lower verifier] arenas are not of the planned bytes");
  ANABATIC_CHECK(program.calls.size() == plan.orders.size(),
                 "[lower verifier] {} actions, {} planned", program.calls.size(),
                 plan.orders.size());
  const std::vector<std::int32_t> states = program_states(graph);
  for (const auto& [action, calls] : program.calls) check_calls(graph, plan, states, action, calls);
  verify_windows(graph, plan, states, program);
}

void verify_first(const ir::Graph& graph, const plan::Plan& plan, const runtime::Program& program) {
  check_shared(graph, plan, program);
  const std::vector<std::int32_t> states = program_states(graph);
  for (const spec::Action action : {spec::Action::kForward, spec::Action::kBackward})
    check_calls(graph, plan, states, action, program.first.calls.at(action));
}

}  // namespace anabatic::lower
