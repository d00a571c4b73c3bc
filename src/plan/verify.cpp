// SPDX-License-Identifier: Apache-2.0
// Checks a plan against its graph by running it on a map of which value every byte holds.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "ir/op_schema.h"
#include "plan/plan.h"
#include "plan/storage.h"
#include "plan/verify_windows.h"

namespace anabatic::plan {
namespace {

constexpr std::int64_t kGarbage = -1;

// Which value each span of bytes holds.
class ByteMap {
 public:
  void write(std::int64_t begin, std::int64_t end, std::int64_t content) {
    if (begin == end) return;
    auto it = spans_.lower_bound(begin);
    if (it != spans_.begin() && std::prev(it)->second.first > begin) --it;
    while (it != spans_.end() && it->first < end) {
      const std::int64_t left = it->first, right = it->second.first;
      it = spans_.erase(it);
      // What is left of a span that is cut is no longer a whole value.
      if (left < begin) spans_[left] = {begin, kGarbage};
      if (right > end) it = spans_.insert({end, {right, kGarbage}}).first;
    }
    spans_[begin] = {end, content};
  }
  bool holds(std::int64_t begin, std::int64_t end, std::int64_t content) const {
    if (begin == end) return true;
    const auto it = spans_.find(begin);
    return it != spans_.end() && it->second == std::pair{end, content};
  }

 private:
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> spans_;
};

class Verifier {
 public:
  Verifier(const ir::Graph& graph, const Plan& plan)
      : graph_(graph), plan_(plan), windows_(graph, plan) {
    for (std::size_t i = 0; i < graph.values.size(); ++i)
      content_.push_back(static_cast<std::int64_t>(i));
    const auto note = [](auto& by_position, std::int32_t position, std::size_t i) {
      std::vector<std::size_t>& list = by_position[position];
      if (list.empty() || list.back() != i) list.push_back(i);
    };
    for (std::size_t i = 0; i < plan.windows.size(); ++i) {
      note(window_ends_, plan.windows[i].end, i);
      note(window_reads_, plan.windows[i].read_at, i);
      note(window_reads_, plan.windows[i].use, i);
    }
    for (std::size_t i = 0; i < plan.offloads.size(); ++i) {
      const Offload& offload = plan.offloads[i];
      for (const std::int32_t position : {offload.write_at, offload.read_at, offload.needed_at})
        note(offload_moves_, position, i);
    }
  }

  void run() {
    check_coverage();
    check_buffers();
    check_accumulates();
    start();
    for (const auto& [action, order] : plan_.orders) {
      action_ = action;
      for (const PlannedNode& planned : order) {
        move_windows();
        await_exchanges();
        step(planned);
        ++position_;
      }
    }
    move_windows();
    await_exchanges();
    check_end();
    check_next_step();
  }

 private:
  std::string label(ir::NodeId id) const {
    return fmt::format("n{} {}", index(id), node_label(graph_.node(id)));
  }

  void check_coverage() {
    std::vector<int> count(graph_.nodes.size(), 0);
    for (const auto& [action, order] : plan_.orders)
      for (const PlannedNode& planned : order) {
        ANABATIC_RULE(index(planned.node) < graph_.nodes.size(), "every node exactly once",
                      "n{} does not exist", index(planned.node));
        const ir::Node& node = graph_.node(planned.node);
        ANABATIC_RULE(action_of(node.tag.phase) == action, "nodes in the action of their phase",
                      "{} is in {}", label(planned.node), to_string(action));
        ANABATIC_RULE(planned.kernel != nullptr && planned.kernel->op == node.op->name,
                      "a kernel of the op", "{}", label(planned.node));
        ANABATIC_RULE(planned.modes.size() == node.outputs.size(), "a mode an output", "{}",
                      label(planned.node));
        ++count[index(planned.node)];
      }
    for (std::size_t i = 0; i < count.size(); ++i)
      ANABATIC_RULE(count[i] == (is_accumulate(graph_.nodes[i]) ? 0 : 1), "every node exactly once",
                    "n{} {} appears {} times", i, node_label(graph_.nodes[i]), count[i]);
  }

  std::int64_t arena_bytes(const PlannedBuffer& buffer) const {
    switch (buffer.arena) {
      case spec::Arena::kFrame:
        return plan_.frame_bytes;
      case spec::Arena::kGradient:
        return plan_.gradient_bytes;
      case spec::Arena::kInput:
        return plan_.input_bytes;
      case spec::Arena::kExternal:
        return plan_.external_bytes;
      case spec::Arena::kPersistent:
        break;
    }
    return buffer.bytes;
  }

  void check_buffers() const {
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      const PlannedBuffer& buffer = plan_.buffers[i];
      ANABATIC_RULE(buffer.offset >= 0 && buffer.offset % kAlignmentBytes == 0, "aligned offsets",
                    "value {} at {}", index(buffer.value), buffer.offset);
      ANABATIC_RULE(buffer.offset + buffer.bytes <= arena_bytes(buffer), "buffers inside arenas",
                    "value {} ends at {} of {}", index(buffer.value), buffer.offset + buffer.bytes,
                    arena_bytes(buffer));
      if (plan_.has_values_among_gradients() && buffer.arena == spec::Arena::kGradient) continue;
      const bool is_state =
          buffer.arena == spec::Arena::kPersistent || buffer.arena == spec::Arena::kGradient ||
          windows_.is_window(static_cast<std::int32_t>(i)) || is_gradient_in_frame(buffer);
      ANABATIC_RULE(is_state == (buffer.state >= 0), "states in state arenas", "value {}",
                    index(buffer.value));
    }
  }

  // Where a step has one micro-batch.
  bool is_gradient_in_frame(const PlannedBuffer& buffer) const {
    return plan_.has_gradients_in_frame() && buffer.arena == spec::Arena::kFrame &&
           buffer.state >= 0 &&
           graph_.states[static_cast<std::size_t>(buffer.state)].kind() == ir::StateKind::kGradient;
  }

  // A gradient is one content from its first contribution on.
  void check_accumulates() {
    for (const ir::Node& node : graph_.nodes) {
      if (!is_accumulate(node)) continue;
      const std::int64_t content = index(node.outputs[0]);
      for (ir::ValueId input : node.inputs) {
        content_[index(input)] = content;
        if (input != node.inputs[0]) is_contribution_.insert(index(input));
        ANABATIC_RULE(same_place(input, node.outputs[0]), "contributions in their gradient",
                      "value {}", index(input));
      }
      num_missing_[content] = static_cast<int>(node.inputs.size()) - 1;
    }
  }

  bool same_place(ir::ValueId a, ir::ValueId b) const {
    return plan_.buffer_of_value[index(a)] == plan_.buffer_of_value[index(b)];
  }

  const PlannedBuffer& buffer(ir::ValueId value) const {
    const std::int32_t i = plan_.buffer_of_value[index(value)];
    ANABATIC_RULE(i >= 0, "a buffer for every value", "value {} has none", index(value));
    return plan_.buffers[static_cast<std::size_t>(i)];
  }
  bool is_input(ir::ValueId value) const {
    return is_input_.contains(plan_.buffer_of_value[index(value)]);
  }
  // A state is an arena of its own.
  ByteMap& arena(const PlannedBuffer& at) {
    return arenas_[{at.arena, at.arena == spec::Arena::kPersistent ? at.state : -1}];
  }
  void write(ir::ValueId value) {
    const PlannedBuffer& at = buffer(value);
    const std::int64_t bytes = graph_.value(value).type.num_bytes();
    ANABATIC_RULE(bytes == at.bytes, "buffers of their values' bytes", "value {} has {} of {}",
                  index(value), at.bytes, bytes);
    arena(at).write(at.offset, at.offset + bytes, content_[index(value)]);
  }
  bool holds(ir::ValueId value) {
    const PlannedBuffer& at = buffer(value);
    return arena(at).holds(at.offset, at.offset + at.bytes, content_[index(value)]);
  }

  void start() {
    for (const auto* list : {&graph_.batch, &graph_.step_inputs})
      for (ir::ValueId value : *list) {
        const spec::Arena at = buffer(value).arena;
        ANABATIC_RULE(at == spec::Arena::kInput || at == spec::Arena::kExternal,
                      "inputs in their arena", "value {}", index(value));
        is_input_.insert(plan_.buffer_of_value[index(value)]);
        write(value);
      }
    for (const ir::State& state : graph_.states) {
      const bool is_gradient = state.kind() == ir::StateKind::kGradient;
      ANABATIC_RULE(same_place(state.before, state.after), "before and after at one address",
                    "state {}", text(state.name));
      if (windows_.is_window(state.before)) continue;  // on disk when the step begins
      ANABATIC_RULE(buffer(state.before).arena ==
                            (is_gradient ? spec::Arena::kGradient : spec::Arena::kPersistent) ||
                        is_gradient_in_frame(buffer(state.before)),
                    "states in state arenas", "state {}", text(state.name));
      if (!is_gradient) write(state.before);
    }
  }

  static bool overlap(const PlannedBuffer& a, const PlannedBuffer& b) {
    if (a.arena != b.arena || a.bytes == 0 || b.bytes == 0) return false;
    if (a.arena == spec::Arena::kPersistent) return a.state == b.state;
    return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
  }

  void step(const PlannedNode& planned) {
    const ir::Node& node = graph_.node(planned.node);
    if (planned.is_offloaded) {  // move_windows() has read the value
      ANABATIC_RULE(std::any_of(plan_.offloads.begin(), plan_.offloads.end(),
                                [&](const Offload& offload) {
                                  return offload.reload == planned.node &&
                                         offload.needed_at == position_;
                                }),
                    "an offload for every reload without a call", "{}", label(planned.node));
      made_by_[index(node.outputs[0])] = planned.node;
      return;
    }
    for (ir::ValueId input : node.inputs) {
      ANABATIC_RULE(holds(input), "topological, and no two live buffers overlap",
                    "{} reads value {} '{}', which is not in its bytes: it is not computed yet, or "
                    "overwritten",
                    label(planned.node), index(input), text(graph_.value(input).name));
      const auto missing = num_missing_.find(content_[index(input)]);
      ANABATIC_RULE(missing == num_missing_.end() || missing->second == 0,
                    "topological, and no two live buffers overlap",
                    "{} reads a gradient before its last contribution", label(planned.node));
      check_crossing(planned.node, input);
    }
    check_aliases(planned, node);
    if (planned.workspace_bytes > 0) {
      const bool is_in_frame = planned.workspace_arena == spec::Arena::kFrame;
      ANABATIC_RULE(planned.workspace_offset % kAlignmentBytes == 0 &&
                        (is_in_frame || plan_.has_values_among_gradients()) &&
                        planned.workspace_offset + planned.workspace_bytes <=
                            (is_in_frame ? plan_.frame_bytes : plan_.gradient_bytes),
                    "buffers inside arenas", "workspace of {}", label(planned.node));
      arenas_[{planned.workspace_arena, -1}].write(
          planned.workspace_offset, planned.workspace_offset + planned.workspace_bytes, kGarbage);
    }
    check_transfers(planned);
    for (std::size_t i = 0; i < node.outputs.size(); ++i) check_write(planned, node, i);
    check_lifetimes(planned, node);
    if (planned.is_exchange) post(planned, node);
  }

  // The bytes of an exchange hold nothing that may be read until its await.
  void post(const PlannedNode& planned, const ir::Node& node) {
    ANABATIC_RULE(next_post_ < plan_.exchanges.size() &&
                      plan_.exchanges[next_post_].node == planned.node &&
                      plan_.exchanges[next_post_].posted_at == position_ &&
                      plan_.exchanges[next_post_].awaited_at > position_,
                  "an exchange for every node without a call, in the order of posts", "{}",
                  label(planned.node));
    const auto in_flight = in_flight_of(next_post_++);
    for (const ir::ValueId output : node.outputs) {
      const PlannedBuffer& at = buffer(output);
      arena(at).write(at.offset, at.offset + at.bytes, in_flight);
    }
  }

  std::int64_t in_flight_of(std::size_t exchange) const {
    return -2 - static_cast<std::int64_t>(plan_.windows.size() + plan_.offloads.size() + exchange);
  }

  bool is_exchanged_in_place(const ir::Node& node, ir::ValueId input) const {
    return std::ranges::any_of(node.outputs,
                               [&](ir::ValueId output) { return same_place(input, output); });
  }

  void await_exchanges() {
    for (std::size_t i = 0; i < next_post_; ++i) {
      if (plan_.exchanges[i].awaited_at != position_) continue;
      const ir::Node& node = graph_.node(plan_.exchanges[i].node);
      for (const ir::ValueId input : node.inputs)
        ANABATIC_RULE(is_exchanged_in_place(node, input) || holds(input),
                      "no exchange overlaps another use of its bytes",
                      "value {} is overwritten while ranks read it", index(input));
      for (const ir::ValueId output : node.outputs) {
        const PlannedBuffer& at = buffer(output);
        ANABATIC_RULE(arena(at).holds(at.offset, at.offset + at.bytes, in_flight_of(i)),
                      "no exchange overlaps another use of its bytes",
                      "value {} is overwritten while ranks exchange it", index(output));
        write(output);
      }
      ++num_awaited_;
    }
  }

  // Transfers before the node at this position, in the order of the queue.
  void move_windows() {
    ByteMap& frame = arenas_[{spec::Arena::kFrame, -1}];
    const auto in_flight = [](std::size_t i) { return -2 - static_cast<std::int64_t>(i); };
    static const std::vector<std::size_t> kNone;
    const auto here = [&](const std::map<std::int32_t, std::vector<std::size_t>>& by_position)
        -> const std::vector<std::size_t>& {
      const auto found = by_position.find(position_);
      return found == by_position.end() ? kNone : found->second;
    };
    for (const std::size_t i : here(window_ends_)) {
      const SwapWindow& window = plan_.windows[i];
      ANABATIC_RULE(holds(windows_.after(window)), "states end with their new value",
                    "window of value {}", index(windows_.after(window)));
      is_written_.insert(index(windows_.before(window)));
    }
    windows_.queue_writes(position_);
    windows_.end_writes(position_, false);
    for (const std::size_t i : here(window_reads_)) {
      const SwapWindow& window = plan_.windows[i];
      const PlannedBuffer& at = windows_.buffer(window);
      if (window.read_at == position_) {
        frame.write(at.offset, at.offset + window.bytes, in_flight(i));
        windows_.queue_read(i);
      }
      if (window.use != position_) continue;
      windows_.await_read(i);
      ANABATIC_RULE(frame.holds(at.offset, at.offset + window.bytes, in_flight(i)),
                    "no transfer overlaps another use of its bytes",
                    "value {} is overwritten while it comes from disk",
                    index(windows_.before(window)));
      frame.write(at.offset, at.offset + at.bytes, content_[index(windows_.before(window))]);
    }
    for (const std::size_t i : here(offload_moves_))
      move_offload(plan_.offloads[i], plan_.windows.size() + i);
  }

  // Queued as `read`, and in the frame under its number until it is awaited.
  void move_offload(const Offload& offload, std::size_t read) {
    ByteMap& frame = arenas_[{spec::Arena::kFrame, -1}];
    const ir::Node& node = graph_.node(offload.reload);
    const PlannedBuffer& to = buffer(node.outputs[0]);
    const std::int64_t in_flight = -2 - static_cast<std::int64_t>(read);
    if (!offload.is_of_state() && offload.write_at == position_)
      ANABATIC_RULE(holds(node.inputs[0]), "offloads written from computed values",
                    "value {} is not in its bytes", index(node.inputs[0]));
    if (offload.read_at == position_) {
      // Queued before its update's write, if there is one.
      ANABATIC_RULE(!offload.is_of_state() || !is_written_.contains(index(node.inputs[0])),
                    "copies of parameters before their update", "value {} is no longer on disk",
                    index(node.inputs[0]));
      windows_.check_write(to.offset, to.offset + offload.bytes);
      frame.write(to.offset, to.offset + offload.bytes, in_flight);
      windows_.queue_read(read);
    }
    if (offload.needed_at != position_) return;
    windows_.await_read(read);
    ANABATIC_RULE(frame.holds(to.offset, to.offset + offload.bytes, in_flight),
                  "no transfer overlaps another use of its bytes",
                  "value {} is overwritten while it comes from disk", index(node.outputs[0]));
    frame.write(to.offset, to.offset + to.bytes, content_[index(node.outputs[0])]);
  }

  // A node must not write to windows that are being written to disk.
  void check_transfers(const PlannedNode& planned) const {
    if (!windows_.is_draining()) return;
    windows_.check_write(planned.workspace_offset,
                         planned.workspace_offset + planned.workspace_bytes);
    for (ir::ValueId output : graph_.node(planned.node).outputs)
      if (const PlannedBuffer& at = buffer(output); at.arena == spec::Arena::kFrame)
        windows_.check_write(at.offset, at.offset + at.bytes);
  }

  // Writes that drain into the next step, up to its first use of a window: its read came after
  // them.
  void check_next_step() {
    const std::int32_t end = plan_.windows.empty() ? 0 : plan_.windows.front().use;
    std::int32_t position = 0;
    for (const auto& [action, order] : plan_.orders)
      for (const PlannedNode& planned : order) {
        if (position == end) return;
        windows_.end_writes(position++, true);
        check_transfers(planned);
      }
  }

  // Only states and gradients cross from micro-batches to the update; constants are equal in all.
  void check_crossing(ir::NodeId reader, ir::ValueId input) {
    if (is_input(input) || buffer(input).state >= 0) return;
    const auto made = made_by_.find(index(input));
    ANABATIC_RULE(made != made_by_.end(), "topological, and no two live buffers overlap",
                  "{} reads value {}, which no call writes", label(reader), index(input));
    const ir::Node& maker = graph_.node(made->second);
    ANABATIC_RULE(action_ != spec::Action::kUpdate || maker.inputs.empty() ||
                      action_of(maker.tag.phase) == spec::Action::kUpdate,
                  "only states and gradients cross micro-batches", "{} reads a value of {}",
                  label(reader), label(made->second));
  }

  void check_aliases(const PlannedNode& planned, const ir::Node& node) {
    PlannedBuffer workspace{.arena = planned.workspace_arena};
    workspace.offset = planned.workspace_offset;
    workspace.bytes = planned.workspace_bytes;
    const ir::Aliases may_alias = ir::may_alias(node), must_alias = ir::must_alias(node);
    for (std::size_t o = 0; o < node.outputs.size(); ++o) {
      const PlannedBuffer& output = buffer(node.outputs[o]);
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        if (!overlap(output, buffer(node.inputs[i]))) continue;
        bool is_allowed = false;
        for (const ir::Aliases aliases : {may_alias, must_alias})
          is_allowed |= o < aliases.size() && aliases[o] == static_cast<int>(i) &&
                        have_one_format(graph_, node.inputs[i], node.outputs[o]);
        // The same value twice among the inputs of an elementwise op is the same element.
        for (std::size_t j = 0; j < node.inputs.size(); ++j)
          is_allowed |= node.inputs[j] == node.inputs[i] && o < must_alias.size() &&
                        must_alias[o] == static_cast<int>(j);
        ANABATIC_RULE(is_allowed && output.offset == buffer(node.inputs[i]).offset,
                      "in place only where the op allows", "{}: output {} over input {}",
                      label(planned.node), o, i);
      }
      for (std::size_t p = 0; p < o; ++p)
        ANABATIC_RULE(!overlap(output, buffer(node.outputs[p])), "outputs apart", "{}",
                      label(planned.node));
      ANABATIC_RULE(!overlap(output, workspace), "workspaces apart", "{}", label(planned.node));
    }
    for (ir::ValueId input : node.inputs)
      ANABATIC_RULE(!overlap(buffer(input), workspace), "workspaces apart", "{}",
                    label(planned.node));
    for (std::size_t o = 0; o < must_alias.size(); ++o)
      if (const int i = must_alias[o]; i >= 0)
        ANABATIC_RULE(same_place(node.outputs[o], node.inputs[static_cast<std::size_t>(i)]),
                      "must_alias in place", "{}: output {}", label(planned.node), o);
  }

  void check_write(const PlannedNode& planned, const ir::Node& node, std::size_t i) {
    const ir::ValueId output = node.outputs[i];
    WriteMode want = WriteMode::kAssign;
    ZeroFill zero = node.op->writes_all ? ZeroFill::kNone : ZeroFill::kAlways;
    if (is_contribution_.contains(index(output))) {
      const bool is_first = !holds(output);
      zero = is_first && !node.op->writes_all ? ZeroFill::kFirstMicroBatch : ZeroFill::kNone;
      want = is_first && node.op->writes_all ? WriteMode::kFirstAssigns : WriteMode::kAccumulate;
      --num_missing_[content_[index(output)]];
    } else if (!node.op->writes_all && node.op->can_accumulate) {
      want = WriteMode::kAccumulate;
    }
    ANABATIC_RULE(planned.modes[i] == want, "write modes by the order of writers", "{}: output {}",
                  label(planned.node), i);
    ANABATIC_RULE(planned.zero_fill == zero && (zero == ZeroFill::kNone || planned.zero_kernel),
                  "zeroes before ops that leave rows untouched", "{}", label(planned.node));
    ANABATIC_RULE(want == WriteMode::kAssign || node.op->can_accumulate,
                  "write modes by the order of writers", "{} cannot add", label(planned.node));
    ANABATIC_RULE(!is_input(output), "inputs are only read", "{}", label(planned.node));
    write(output);
    made_by_[index(output)] = planned.node;
  }

  void check_lifetimes(const PlannedNode& planned, const ir::Node& node) const {
    for (const auto* list : {&node.inputs, &node.outputs})
      for (ir::ValueId value : *list) {
        const Lifetime& lifetime = buffer(value).lifetime;
        ANABATIC_RULE(lifetime.begin <= position_ && position_ < lifetime.end,
                      "lifetimes hold every use", "{}: value {}", label(planned.node),
                      index(value));
      }
  }

  void check_end() {
    for (const ir::State& state : graph_.states)
      ANABATIC_RULE(state.kind() == ir::StateKind::kGradient || windows_.is_window(state.before) ||
                        holds(state.after),
                    "states end with their new value", "state {}", text(state.name));
    for (const auto& [content, missing] : num_missing_)
      ANABATIC_RULE(missing == 0, "every contribution written once", "value {}", content);
    ANABATIC_RULE(num_awaited_ == plan_.exchanges.size(), "every exchange is awaited", "{} of {}",
                  num_awaited_, plan_.exchanges.size());
    for (ir::ValueId output : graph_.outputs)
      ANABATIC_RULE(holds(output), "outputs stay readable", "'{}'",
                    text(graph_.value(output).name));
  }

  const ir::Graph& graph_;
  const Plan& plan_;
  WindowVerifier windows_;
  std::vector<std::int64_t> content_;  // by value: what its bytes hold once it is made
  std::set<std::uint32_t> is_contribution_;
  std::set<std::int32_t> is_input_;          // indexes into Plan::buffers
  std::map<std::int64_t, int> num_missing_;  // contributions still to come, by content
  std::map<std::pair<spec::Arena, std::int32_t>, ByteMap> arenas_;
  std::map<std::uint32_t, ir::NodeId> made_by_;
  std::set<std::uint32_t> is_written_;  // values that the disk holds no more
  // Indices of what transfers there, ascending: of windows that end, of those that are read or come
  // into use, of offloads.
  std::map<std::int32_t, std::vector<std::size_t>> window_ends_, window_reads_, offload_moves_;
  spec::Action action_{};
  std::int32_t position_ = 0;
  std::size_t next_post_ = 0, num_awaited_ = 0;  // of Plan::exchanges
};

}  // namespace

void verify(const ir::Graph& graph, const Plan& plan) { Verifier(graph, plan).run(); }

}  // namespace anabatic::plan
