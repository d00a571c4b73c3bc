// SPDX-License-Identifier: Apache-2.0
#include "plan/plan.h"

#include <algorithm>
#include <set>
#include <span>

#include "base/error.h"
#include "ir/op_schema.h"
#include "plan/exchanges.h"
#include "plan/kernel_selection.h"
#include "plan/offload.h"
#include "plan/offset_search.h"
#include "plan/offsets.h"
#include "plan/order.h"
#include "plan/storage.h"
#include "plan/swap.h"

namespace anabatic::plan {
namespace {

// Builds the buffers: storages with lifetimes, some of them merged because a node works in place.
class BufferPlanner {
 public:
  BufferPlanner(const ir::Graph& graph, const StorageMap& map, const std::vector<ir::NodeId>& order,
                std::span<const Offload> offloads, std::span<const Exchange> exchanges)
      : graph_(graph), map_(map), order_(order), buffer_of_storage_(map.storages.size()) {
    std::vector<Lifetime> lifetimes = analysis::liveness(graph, order);
    for (const Offload& offload : offloads) {
      const ir::Node& reload = graph.node(offload.reload);
      if (!offload.is_of_state()) lifetimes[index(reload.inputs[0])].end = offload.written_by;
      lifetimes[index(reload.outputs[0])].begin = offload.read_at;
    }
    for (const Exchange& exchange : exchanges)
      for (const auto* list :
           {&graph.node(exchange.node).inputs, &graph.node(exchange.node).outputs})
        for (const ir::ValueId value : *list) {
          std::int32_t& end = lifetimes[index(value)].end;
          end = std::max(end, exchange.awaited_at);
        }
    const auto length = static_cast<std::int32_t>(order.size());
    const std::vector<Lifetime> contributed = gradient_lifetimes(lifetimes);
    for (std::size_t i = 0; i < map.storages.size(); ++i) {
      const Storage& storage = map.storages[i];
      buffer_of_storage_[i] = static_cast<std::int32_t>(i);
      is_output_.push_back(storage.is_output);
      PlannedBuffer buffer{.value = storage.values.front(),
                           .arena = storage.arena,
                           .state = storage.state,
                           .bytes = storage.bytes};
      if (storage.arena == spec::Arena::kFrame) {
        for (ir::ValueId value : storage.values)
          buffer.lifetime = join(buffer.lifetime, lifetimes[index(value)]);
      } else if (storage.arena == spec::Arena::kGradient) {
        buffer.lifetime = contributed[i];
        if (storage.is_output) buffer.lifetime.end = length;
      } else {
        buffer.lifetime = {0, length};
      }
      buffers_.push_back(buffer);
    }
  }

  // Lets an output take over the bytes of an input that dies at its node, where the op allows it.
  void work_in_place() {
    for (std::size_t position = 0; position < order_.size(); ++position) {
      const ir::Node& node = graph_.node(order_[position]);
      const ir::Aliases aliases = ir::may_alias(node);
      for (std::size_t output = 0; output < aliases.size(); ++output)
        if (const int input = aliases[output]; input >= 0)
          take_over(node, node.outputs[output], node.inputs[static_cast<std::size_t>(input)],
                    static_cast<std::int32_t>(position));
    }
  }

  // Gradients give their bytes back like any value of the frame.
  void move_gradients_to_frame() {
    for (PlannedBuffer& buffer : buffers_)
      if (buffer.arena == spec::Arena::kGradient) buffer.arena = spec::Arena::kFrame;
  }

  // Moves the result into the plan, without offsets.
  void finish(Plan& plan) {
    std::vector<std::int32_t> final_index(buffers_.size(), -1);
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      if (buffer_of_storage_[i] != static_cast<std::int32_t>(i)) continue;
      final_index[i] = static_cast<std::int32_t>(plan.buffers.size());
      plan.buffers.push_back(buffers_[i]);
    }
    plan.buffer_of_value.assign(graph_.values.size(), -1);
    for (std::size_t i = 0; i < graph_.values.size(); ++i)
      if (map_.of_value[i] >= 0)
        plan.buffer_of_value[i] =
            final_index[static_cast<std::size_t>(root(static_cast<std::size_t>(map_.of_value[i])))];
  }

 private:
  // Gradients live from their first contribution to the last reader of `after`.
  std::vector<Lifetime> gradient_lifetimes(const std::vector<Lifetime>& lifetimes) const {
    std::vector<std::int32_t> begin(map_.storages.size(), -1);
    for (std::size_t i = 0; i < order_.size(); ++i)
      for (ir::ValueId output : graph_.node(order_[i]).outputs) {
        std::int32_t& first = begin[static_cast<std::size_t>(map_.of_value[index(output)])];
        if (first < 0) first = static_cast<std::int32_t>(i);
      }
    std::vector<Lifetime> result(map_.storages.size());
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i].begin = std::max(begin[i], 0);
      for (ir::ValueId value : map_.storages[i].values)
        result[i].end = std::max(result[i].end, lifetimes[index(value)].end);
    }
    return result;
  }

  std::int32_t root(std::size_t storage) const {
    std::int32_t i = buffer_of_storage_[storage];
    while (buffer_of_storage_[static_cast<std::size_t>(i)] != i)
      i = buffer_of_storage_[static_cast<std::size_t>(i)];
    return i;
  }
  std::int32_t root_of(ir::ValueId value) const {
    return root(static_cast<std::size_t>(map_.of_value[index(value)]));
  }

  void take_over(const ir::Node& node, ir::ValueId output, ir::ValueId input,
                 std::int32_t position) {
    const std::int32_t from = root_of(output), to = root_of(input);
    PlannedBuffer& of_output = buffers_[static_cast<std::size_t>(from)];
    PlannedBuffer& of_input = buffers_[static_cast<std::size_t>(to)];
    // Outputs stay readable, even beyond the last node.
    if (is_output_[static_cast<std::size_t>(to)]) return;
    const bool is_external = of_output.arena == spec::Arena::kExternal;
    if (from == to || (of_output.arena != spec::Arena::kFrame && !is_external) ||
        of_input.arena != spec::Arena::kFrame || of_output.bytes != of_input.bytes)
      return;
    if (!have_one_format(graph_, output, input)) return;
    if (!is_external && of_output.lifetime.begin != position) return;
    if (of_input.lifetime.end != position + 1) return;
    int uses = 0;
    for (const auto* list : {&node.inputs, &node.outputs})
      for (ir::ValueId value : *list) uses += root_of(value) == to;
    if (uses != 1) return;
    if (is_external) {  // the input is made in the caller's bytes
      of_output.value = std::min(of_input.value, of_output.value);
      buffer_of_storage_[static_cast<std::size_t>(to)] = from;
      return;
    }
    of_input.lifetime.end = of_output.lifetime.end;
    of_input.value = std::min(of_input.value, of_output.value);
    is_output_[static_cast<std::size_t>(to)] = is_output_[static_cast<std::size_t>(from)];
    buffer_of_storage_[static_cast<std::size_t>(from)] = to;
  }

  const ir::Graph& graph_;
  const StorageMap& map_;
  const std::vector<ir::NodeId>& order_;
  std::vector<PlannedBuffer> buffers_;           // by storage; merged ones are unused
  std::vector<bool> is_output_;                  // by storage
  std::vector<std::int32_t> buffer_of_storage_;  // itself, or the one that it merged into
};

// A gain of the frame arena that is not worth a search, as a part of its bound.
constexpr double kFrameSlack = 0.005;
// Limit of a search: some tenths of a second; a step of a thousand buffers takes half of them.
constexpr std::int64_t kFrameSteps = std::int64_t{1} << 27;

// Buffers that disks write from or read into, whole sectors of them.
std::vector<PlannedBuffer*> offloaded_buffers(const ir::Graph& graph, Plan& plan) {
  std::vector<PlannedBuffer*> result;
  const auto add = [&](ir::ValueId value) {
    result.push_back(&plan.buffers[static_cast<std::size_t>(plan.buffer_of_value[index(value)])]);
  };
  for (const Offload& offload : plan.offloads) {
    const ir::Node& reload = graph.node(offload.reload);
    if (!offload.is_of_state()) add(reload.inputs[0]);
    add(reload.outputs[0]);
  }
  return result;
}

void place(const ir::Graph& graph, Plan& plan, const std::vector<PlannedNode*>& nodes,
           bool trivial) {
  std::vector<LiveBytes> frame, gradient;
  std::vector<std::int64_t*> frame_offsets, gradient_offsets;
  const std::vector<PlannedBuffer*> offloaded = offloaded_buffers(graph, plan);
  const std::set<const PlannedBuffer*> moves(offloaded.begin(), offloaded.end());
  for (PlannedBuffer& buffer : plan.buffers) {
    switch (buffer.arena) {
      case spec::Arena::kFrame:
        // With room to lie at a sector's begin.
        frame.push_back({buffer.lifetime, moves.contains(&buffer)
                                              ? align_to_sectors(buffer.bytes) +
                                                    kSwapAlignmentBytes - kAlignmentBytes
                                              : buffer.bytes});
        frame_offsets.push_back(&buffer.offset);
        break;
      case spec::Arena::kGradient:
        // Every gradient is alive when the next micro-batch begins, so none shares bytes.
        gradient.push_back({buffer.lifetime, buffer.bytes});
        gradient_offsets.push_back(&buffer.offset);
        break;
      case spec::Arena::kInput:
        buffer.offset = plan.input_bytes;
        plan.input_bytes += align_bytes(buffer.bytes);
        break;
      case spec::Arena::kExternal:  // an offset of its own for each, also where it has no bytes
        buffer.offset = plan.external_bytes;
        plan.external_bytes += std::max(align_bytes(buffer.bytes), kAlignmentBytes);
        break;
      case spec::Arena::kPersistent:
        plan.persistent_bytes += align_bytes(buffer.bytes);
        break;
    }
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i]->workspace_bytes == 0) continue;
    const auto position = static_cast<std::int32_t>(i);
    frame.push_back({{position, position + 1}, nodes[i]->workspace_bytes});
    frame_offsets.push_back(&nodes[i]->workspace_offset);
  }
  const Placement in_frame =
      trivial ? place_in_sequence(frame)
              : place_by_search(frame, {.steps = kFrameSteps, .slack = kFrameSlack});
  const Placement in_gradient = place_in_sequence(gradient);
  for (std::size_t i = 0; i < frame.size(); ++i) *frame_offsets[i] = in_frame.offsets[i];
  for (std::size_t i = 0; i < gradient.size(); ++i) *gradient_offsets[i] = in_gradient.offsets[i];
  for (PlannedBuffer* buffer : offloaded) buffer->offset = align_to_sectors(buffer->offset);
  plan.frame_bytes = in_frame.bytes;
  plan.gradient_bytes = in_gradient.bytes;
  for (LiveBytes& item : frame) item.bytes = align_bytes(item.bytes);
  plan.frame_live_bytes = analysis::peak_live_bytes(frame);
}

// Parameters on disk that the step only reads have no window, and no bytes in memory.
void leave_on_disk(const ir::Graph& graph, Plan& plan) {
  std::set<std::int32_t> states;
  for (const Offload& offload : plan.offloads) {
    if (!offload.is_of_state() || !states.insert(offload.state).second) continue;
    const ir::State& state = graph.states[static_cast<std::size_t>(offload.state)];
    const PlannedBuffer& buffer =
        plan.buffers[static_cast<std::size_t>(plan.buffer_of_value[index(state.before)])];
    if (buffer.arena == spec::Arena::kPersistent)
      plan.persistent_bytes -= align_bytes(buffer.bytes);
  }
}

// `=` and `+=` by the order of writers.
void set_modes(const ir::Graph& graph, const StorageMap& map, const spec::DeviceSpec& device,
               const PlanOptions& options, const std::vector<PlannedNode*>& nodes) {
  std::vector<bool> is_contribution(graph.values.size(), false);
  for (const ir::Node& node : graph.nodes)
    if (is_accumulate(node))
      for (std::size_t i = 1; i < node.inputs.size(); ++i)
        is_contribution[index(node.inputs[i])] = true;
  std::vector<bool> is_written(map.storages.size(), false);
  for (PlannedNode* planned : nodes) {
    const ir::Node& node = graph.node(planned->node);
    for (ir::ValueId output : node.outputs) {
      if (!is_contribution[index(output)]) {
        const bool adds_to_zeroes = !node.op->writes_all && node.op->can_accumulate;
        planned->modes.push_back(adds_to_zeroes ? WriteMode::kAccumulate : WriteMode::kAssign);
        if (!node.op->writes_all) planned->zero_fill = ZeroFill::kAlways;
        continue;
      }
      const auto storage = static_cast<std::size_t>(map.of_value[index(output)]);
      const bool is_first = !is_written[storage];
      is_written[storage] = true;
      // Over zeroes, adding is assigning: so the op need not treat a row's first write apart.
      const bool adds = !is_first || !node.op->writes_all;
      planned->modes.push_back(adds ? WriteMode::kAccumulate : WriteMode::kFirstAssigns);
      if (is_first && adds) planned->zero_fill = ZeroFill::kFirstMicroBatch;
    }
    if (planned->zero_fill == ZeroFill::kNone) continue;
    const std::vector<TensorType> types = node_types(graph, node).outputs;
    const spec::Attributes attributes = zero_fill_attributes(types.front());
    ANABATIC_CHECK(types.size() == 1, "[plan] {} leaves rows of several outputs untouched",
                   node.op->name);
    const KernelChoice fill = select_kernel(
        {.op = intern("fill"), .attributes = &attributes, .outputs = types, .device = &device},
        {.find = options.find_kernels, .only = options.only_kernels},
        node_label(node) + " zero fill");
    ANABATIC_CHECK(fill.workspace_bytes == 0, "[plan] {} wants workspace for a zero fill",
                   fill.kernel->name);
    planned->zero_kernel = fill.kernel;
  }
}

}  // namespace

Plan make_plan(const ir::Graph& graph, const spec::DeviceSpec& device, const PlanOptions& options) {
  Plan plan;
  plan.name = graph.name;
  plan.places = options.trivial ? spec::kEveryPlace : options.places;
  const std::vector<KernelChoice> choices =
      select_kernels(graph, device, {.find = options.find_kernels, .only = options.only_kernels},
                     plan.places, options.explanation);
  std::vector<std::int64_t> workspace_bytes;
  for (const KernelChoice& choice : choices) workspace_bytes.push_back(choice.workspace_bytes);
  const StorageMap map = assign_storage(graph, options.external_operands);
  // Updates of states on disk stay as far apart as gradients come: each waits for its window.
  const bool gradients_in_frame = plan.has_gradients_in_frame();
  const bool shortens_gradients = gradients_in_frame && !options.disk.optimizer_state;
  const Orders orders = options.trivial ? given_order(graph)
                                        : early_free_order(graph, map, workspace_bytes,
                                                           gradients_in_frame, shortens_gradients);

  std::vector<PlannedNode*> nodes;
  for (const auto& [action, order] : orders) {
    std::vector<PlannedNode>& planned = plan.orders[action];
    planned.reserve(order.size());  // pointers to the elements are kept
    for (ir::NodeId id : order) {
      planned.push_back({.node = id,
                         .kernel = choices[index(id)].kernel,
                         .workspace_bytes = choices[index(id)].workspace_bytes,
                         .slicing_bytes = choices[index(id)].slicing_bytes});
      nodes.push_back(&planned.back());
    }
  }
  const std::vector<ir::NodeId> order = concatenate(orders);
  const bool has_reload = std::any_of(graph.nodes.begin(), graph.nodes.end(),
                                      [](const auto& node) { return node.op->name == "reload"; });
  if (has_reload && !options.trivial && options.efficiency != nullptr) {
    plan.offloads = find_offloads(
        graph, order, predicted_calls(graph, plan, with_peaks(device), *options.efficiency),
        options.efficiency->disk, options.offloads);
    for (const Offload& offload : plan.offloads) {
      nodes[static_cast<std::size_t>(offload.needed_at)]->is_offloaded = true;
      if (!offload.is_of_state()) plan.disk_bytes += offload.bytes;
    }
  }
  plan.exchanges = find_exchanges(graph, order, options.trivial || !options.overlaps_exchanges);
  for (const Exchange& exchange : plan.exchanges)
    nodes[static_cast<std::size_t>(exchange.posted_at)]->is_exchange = true;
  BufferPlanner buffers(graph, map, order, plan.offloads, plan.exchanges);
  if (!options.trivial) buffers.work_in_place();
  if (gradients_in_frame) buffers.move_gradients_to_frame();
  buffers.finish(plan);
  place(graph, plan, nodes, options.trivial);
  place_windows(graph, order, options, plan);
  leave_on_disk(graph, plan);
  set_modes(graph, map, device, options, nodes);
  verify(graph, plan);
  return plan;
}

std::string node_label(const ir::Node& node) {
  std::string place = node.tag.layer >= 0 ? fmt::format("layers.{}", node.tag.layer) : "";
  if (const std::string_view segment = text(node.tag.segment); !segment.empty()) {
    if (!place.empty()) place += '.';
    place += segment;
  }
  if (!place.empty()) place += ' ';
  return fmt::format("{}{} {}", place, ir::op_and_form(node), ir::to_string(node.tag.phase));
}

spec::Action action_of(ir::Phase phase) {
  switch (phase) {
    case ir::Phase::kForward:
      return spec::Action::kForward;
    case ir::Phase::kUpdate:
      return spec::Action::kUpdate;
    case ir::Phase::kRecompute:
    case ir::Phase::kBackwardInput:
    case ir::Phase::kBackwardWeight:
      break;
  }
  return spec::Action::kBackward;
}

bool is_accumulate(const ir::Node& node) { return node.op->name == "accumulate"; }

}  // namespace anabatic::plan
