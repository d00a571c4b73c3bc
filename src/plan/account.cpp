// SPDX-License-Identifier: Apache-2.0
#include "plan/account.h"

#include <algorithm>

#include "base/error.h"
#include "ir/op_schema.h"
#include "plan/hint_names.h"
#include "plan/offsets.h"

namespace anabatic::plan {
namespace {

constexpr std::size_t at(Use use) { return static_cast<std::size_t>(use); }

Use use_of_state(ir::StateRole role) {
  if (role == ir::StateRole::kLower) return Use::kParameters;
  switch (spec::kind_of(role)) {
    case ir::StateKind::kParameter:
      return Use::kParameters;
    case ir::StateKind::kOptimizer:
      return Use::kOptimizer;
    case ir::StateKind::kGradient:
    case ir::StateKind::kSum:
      return Use::kGradients;
    case ir::StateKind::kDerived:
      return Use::kPackings;
    case ir::StateKind::kMask:
      return Use::kMasks;
    case ir::StateKind::kCache:
      break;
  }
  return Use::kCaches;
}

std::string describe(const TensorType& type, bool is_state) {
  std::string what(to_string(type.dtype));
  if (is_state && type.layout != kRowMajor) what += fmt::format(" {}", text(type.layout));
  return what;
}

// Whom a buffer's bytes belong to.
struct Place {
  std::int32_t layer = -1;
  std::string_view segment{};
};

// One step's nodes in their order, and what each buffer holds when.
class Uses {
 public:
  Uses(const ir::Graph& graph, const Plan& plan) : graph_(graph), plan_(plan) {
    for (const auto& [action, order] : plan.orders) {
      for (const PlannedNode& planned : order) nodes_.push_back(&planned);
      if (action == spec::Action::kForward) forward_length_ = length();
      if (action <= spec::Action::kBackward) backward_end_ = length();
    }
    find_saved();
    find_places();
  }

  std::int32_t length() const { return static_cast<std::int32_t>(nodes_.size()); }
  std::int32_t forward_length() const { return forward_length_; }
  const PlannedNode& node(std::int32_t position) const {
    return *nodes_[static_cast<std::size_t>(position)];
  }
  const Place& place(std::size_t buffer) const { return places_[buffer]; }
  const Place& place_of_saved(std::size_t buffer) const { return saved_places_[buffer]; }

  static bool is_of_batch(const PlannedBuffer& buffer) {
    return buffer.arena == spec::Arena::kInput || buffer.arena == spec::Arena::kExternal;
  }
  bool is_always_there(const PlannedBuffer& buffer) const {
    return buffer.arena != spec::Arena::kFrame;
  }

  // A buffer's use at a position of its lifetime.
  Use use(std::size_t i, std::int32_t position) const {
    const PlannedBuffer& buffer = plan_.buffers[i];
    if (is_of_batch(buffer)) return Use::kInputs;
    if (buffer.state >= 0)
      return use_of_state(graph_.states[static_cast<std::size_t>(buffer.state)].role);
    return position < saved_end_[i] ? Use::kSaved : Use::kScratch;
  }
  // One past the last position of backward that reads what forward left there; 0: none does.
  std::int32_t saved_end(std::size_t i) const { return saved_end_[i]; }

  // Calls f(use, begin, end, bytes) for all bytes of the plan's arenas but slack.
  template <class F>
  void for_each_span(const F& f) const {
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      const PlannedBuffer& buffer = plan_.buffers[i];
      const std::int64_t bytes = align_bytes(buffer.bytes);
      if (is_always_there(buffer)) {
        f(use(i, 0), 0, length(), bytes);
        continue;
      }
      const auto [begin, end] = buffer.lifetime;
      if (begin == end) continue;
      const std::int32_t change = std::clamp(saved_end_[i], begin, end);
      if (buffer.state >= 0) {
        f(use(i, begin), begin, end, bytes);
      } else {
        if (begin < change) f(Use::kSaved, begin, change, bytes);
        if (change < end) f(Use::kScratch, change, end, bytes);
      }
    }
    for (std::int32_t i = 0; i < length(); ++i)
      if (node(i).workspace_bytes > 0)
        f(Use::kWorkspace, i, i + 1, align_bytes(node(i).workspace_bytes));
  }

 private:
  std::size_t buffer_of(ir::ValueId value) const {
    return static_cast<std::size_t>(plan_.buffer_of_value[index(value)]);
  }

  void find_saved() {
    saved_end_.assign(plan_.buffers.size(), 0);
    saved_places_.assign(plan_.buffers.size(), {});
    std::vector<const ir::Node*> made_in_forward(graph_.values.size(), nullptr);
    for (std::int32_t i = 0; i < backward_end_; ++i) {
      const ir::Node& made = graph_.node(node(i).node);
      if (i < forward_length_) {
        for (const ir::ValueId output : made.outputs) made_in_forward[index(output)] = &made;
        continue;
      }
      if (node(i).is_offloaded) continue;  // what it reads waits on disk
      for (const ir::ValueId input : made.inputs) {
        const ir::Node* producer = made_in_forward[index(input)];
        if (!producer) continue;
        const std::size_t buffer = buffer_of(input);
        saved_end_[buffer] = i + 1;
        saved_places_[buffer] = {producer->tag.layer, text(producer->tag.segment)};
      }
    }
  }

  // A value belongs to its maker; a state to whoever meets its parameter first.
  void find_places() {
    places_.assign(plan_.buffers.size(), {});
    std::vector<bool> is_known(plan_.buffers.size(), false);
    std::map<Name, Place> of_parameter;
    for (const PlannedNode* planned : nodes_) {
      const ir::Node& node = graph_.node(planned->node);
      const Place place{node.tag.layer, text(node.tag.segment)};
      for (const auto* list : {&node.inputs, &node.outputs})
        for (const ir::ValueId value : *list) {
          const std::size_t buffer = buffer_of(value);
          if (is_known[buffer]) continue;
          is_known[buffer] = true;
          places_[buffer] = place;
          const std::int32_t state = plan_.buffers[buffer].state;
          if (state < 0) continue;
          const ir::State& entry = graph_.states[static_cast<std::size_t>(state)];
          if (entry.kind() == ir::StateKind::kParameter || entry.kind() == ir::StateKind::kDerived)
            of_parameter.try_emplace(parameter_of(entry), place);
        }
    }
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      const PlannedBuffer& buffer = plan_.buffers[i];
      if (is_of_batch(buffer)) places_[i] = {-1, "inputs"};
      if (buffer.state < 0) continue;
      const ir::State& state = graph_.states[static_cast<std::size_t>(buffer.state)];
      const auto found = of_parameter.find(parameter_of(state));
      if (found != of_parameter.end()) places_[i] = found->second;
    }
  }

  const ir::Graph& graph_;
  const Plan& plan_;
  std::vector<const PlannedNode*> nodes_;
  std::int32_t forward_length_ = 0, backward_end_ = 0;
  std::vector<std::int32_t> saved_end_;
  std::vector<Place> places_, saved_places_;
};

std::string layer_key(std::int32_t layer) {
  return layer >= 0 ? fmt::format("layers.{}", layer) : std::string();
}

// Bytes of the plan's arenas that no buffer and no workspace uses at a position.
std::int64_t slack(const Plan& plan, const std::array<std::int64_t, kNumUses>& used) {
  std::int64_t sum = 0;
  for (const std::int64_t bytes : used) sum += bytes;
  ANABATIC_CHECK(sum <= plan.peak_bytes(), "[account] {} bytes in use of {} planned", sum,
                 plan.peak_bytes());
  return plan.peak_bytes() - sum;
}

std::int32_t peak_position(const std::vector<std::array<std::int64_t, kNumUses>>& used) {
  std::int32_t best = -1;
  std::int64_t least_slack = 0;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (best >= 0 && used[i][at(Use::kSlack)] >= least_slack) continue;
    best = static_cast<std::int32_t>(i);
    least_slack = used[i][at(Use::kSlack)];
  }
  return best;
}

class AccountWriter {
 public:
  AccountWriter(const ir::Graph& graph, const Plan& plan, const Uses& uses)
      : graph_(graph), plan_(plan), uses_(uses) {}

  Account write(std::int32_t position) {
    account_.peak_bytes = plan_.peak_bytes();
    account_.peak_position = position;
    if (position >= 0) {
      const PlannedNode& planned = uses_.node(position);
      const ir::Node& node = graph_.node(planned.node);
      account_.peak_op = node_label(node);
      add(Use::kWorkspace, "", {node.tag.layer, text(node.tag.segment)},
          align_bytes(planned.workspace_bytes));
    }
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) add_buffer(i, position);
    add(Use::kSlack, "", {-1, "slack"}, account_.peak_bytes - sum_);
    for (const auto& [key, bytes] : rows_)
      if (bytes != 0) account_.rows.push_back({key.first, key.second, bytes});
    std::stable_sort(account_.rows.begin(), account_.rows.end(),
                     [](const AccountRow& a, const AccountRow& b) {
                       return a.use != b.use ? a.use < b.use : a.bytes > b.bytes;
                     });
    return std::move(account_);
  }

 private:
  void add(Use use, const std::string& what, const Place& place, std::int64_t bytes) {
    if (bytes == 0) return;
    sum_ += bytes;
    rows_[{use, what}] += bytes;
    account_.by_layer[layer_key(place.layer)] += bytes;
    account_.by_segment[std::string(place.segment.empty() ? "other" : place.segment)] += bytes;
  }

  void add_buffer(std::size_t i, std::int32_t position) {
    const PlannedBuffer& buffer = plan_.buffers[i];
    if (uses_.saved_end(i) > uses_.forward_length() &&
        buffer.lifetime.begin < uses_.forward_length() && buffer.state < 0 &&
        buffer.arena == spec::Arena::kFrame)
      account_.saved_by_layer[uses_.place_of_saved(i).layer] += buffer.bytes;
    const bool is_live = buffer.lifetime.begin <= position && position < buffer.lifetime.end;
    if (!uses_.is_always_there(buffer) && !is_live) return;
    const Use use = uses_.use(i, position);
    const Place& place = use == Use::kSaved ? uses_.place_of_saved(i) : uses_.place(i);
    add(use, describe(graph_.value(buffer.value).type, buffer.state >= 0), place,
        align_bytes(buffer.bytes));
  }

  const ir::Graph& graph_;
  const Plan& plan_;
  const Uses& uses_;
  Account account_;
  std::map<std::pair<Use, std::string>, std::int64_t> rows_;
  std::int64_t sum_ = 0;
};

std::vector<std::array<std::int64_t, kNumUses>> timeline(const Plan& plan, const Uses& uses) {
  const auto length = static_cast<std::size_t>(uses.length());
  std::vector<std::array<std::int64_t, kNumUses>> used(length + 1);
  uses.for_each_span([&](Use use, std::int32_t begin, std::int32_t end, std::int64_t bytes) {
    used[static_cast<std::size_t>(begin)][at(use)] += bytes;
    used[static_cast<std::size_t>(end)][at(use)] -= bytes;
  });
  used.resize(length);
  for (std::size_t i = 1; i < length; ++i)
    for (std::size_t use = 0; use < kNumUses; ++use) used[i][use] += used[i - 1][use];
  for (auto& row : used) row[at(Use::kSlack)] = slack(plan, row);
  return used;
}

}  // namespace

std::string_view to_string(Use use) {
  switch (use) {
    case Use::kParameters:
      return "parameters";
    case Use::kPackings:
      return "packings";
    case Use::kOptimizer:
      return "optimizer state";
    case Use::kMasks:
      return "masks";
    case Use::kCaches:
      return "caches";
    case Use::kGradients:
      return "gradients";
    case Use::kSaved:
      return "saved activations";
    case Use::kScratch:
      return "scratch";
    case Use::kWorkspace:
      return "workspaces";
    case Use::kInputs:
      return "inputs";
    case Use::kSlack:
      break;
  }
  return "arena slack";
}

std::int64_t Account::bytes(Use use) const {
  std::int64_t sum = 0;
  for (const AccountRow& row : rows)
    if (row.use == use) sum += row.bytes;
  return sum;
}

Account make_account(const ir::Graph& graph, const Plan& plan) {
  const Uses uses(graph, plan);
  return AccountWriter(graph, plan, uses).write(peak_position(timeline(plan, uses)));
}

std::vector<std::array<std::int64_t, kNumUses>> timeline(const ir::Graph& graph, const Plan& plan) {
  return timeline(plan, Uses(graph, plan));
}

}  // namespace anabatic::plan
