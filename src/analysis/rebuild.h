// SPDX-License-Identifier: Apache-2.0
// Which forward values the backward reads, and how it can make them again from others: what the
// pass `recompute` builds and what the memory planner prices. Read-only.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "spec/decisions.h"

namespace anabatic::analysis {

// Which attributes of the forward node a rebuild takes.
enum class TakenAttributes : std::uint8_t { kNone, kAll, kOfActivation, kOfProduct };

// A node of the backward that makes values of the forward again, with their bits; or one that makes
// a value whole again `from` the form in which it waited, which is its input and no value of the
// graph: its op is conversion_from's then.
struct Rebuild {
  std::string_view op{};
  TakenAttributes attributes = TakenAttributes::kNone;  // of `of`
  std::vector<ir::ValueId> inputs{};   // values of the graph: kept, or outputs of earlier rebuilds
  std::vector<ir::ValueId> outputs{};  // the forward value that each output equals
  ir::NodeId of{};                     // the forward node that made them
  ir::NodeId before{};                 // the backward node that is first to need them
  spec::SavedForm from = spec::SavedForm::kWhole;
};

// What becomes of each value between the forward and the backward, by ValueId.
struct Treatments {
  std::vector<bool> is_dropped;
  std::vector<spec::SavedForm> form;  // ignored where the value is dropped
  explicit Treatments(const ir::Graph& graph)
      : is_dropped(graph.values.size(), false),
        form(graph.values.size(), spec::SavedForm::kWhole) {}
  bool is_kept(ir::ValueId value) const {
    return !is_dropped[index(value)] && !waits_in_form(value);
  }
  bool waits_in_form(ir::ValueId value) const {  // another than whole
    return !is_dropped[index(value)] && form[index(value)] != spec::SavedForm::kWhole;
  }
};

// A value that one action's frame keeps for the next: made in the forward, read in the backward.
// Graph outputs and gradients that the forward makes itself are not among them.
struct SavedValue {
  ir::ValueId value{};
  std::string key{};  // its name; where it has none, layer, segment and op:
                      // "layers.3.attention.attention:1" is that op's second output
};

// The attributes of the node that `rebuild` describes; `of` is the forward node.
spec::Attributes attributes_of(const Rebuild& rebuild, const ir::Node& of);

// The gradient of an activation after a product: `linear_activation_gradient`, also grouped and
// with weights.
bool is_activation_gradient(const ir::Node& node);
// The backward's first of them, or kNoNode. It reads gate and up whole where the others read codes:
// memory is fullest there, and its results take the bytes of both.
ir::NodeId first_activation_gradient(const ir::Graph& graph);

// An activation after products that are kept: its outputs are the activation, gate and up, or the
// activation and its operand.
bool keeps_products(const ir::Node& node);

// Whether one of the node's outputs can be made again without the others: a norm without the sum
// below it, an activation without its products, keys without queries.
bool are_outputs_apart(const ir::Node& node);

class Rebuilder {
 public:
  explicit Rebuilder(const ir::Graph& graph);

  // In the order of the nodes that make them; keys are distinct.
  const std::vector<SavedValue>& saved() const { return saved_; }

  // What the backward must run when saved values are treated so, each rebuild ahead of those that
  // read it and ordered by `before`. A value that only the forward reads now is made again too
  // where a rebuild wants it; one that waits in another form stays there where another rebuild
  // makes it. Linear in the rebuilds and their inputs.
  std::vector<Rebuild> rebuilds(const Treatments& treatments) const;

  bool is_saved(ir::ValueId value) const { return is_saved_[index(value)]; }
  // Forward, and backward, nodes that read the value, in their order.
  const std::vector<ir::NodeId>& forward_readers(ir::ValueId value) const {
    return forward_readers_[index(value)];
  }
  const std::vector<ir::NodeId>& backward_readers(ir::ValueId value) const {
    return backward_readers_[index(value)];
  }

 private:
  const ir::Graph& graph_;
  std::vector<SavedValue> saved_;
  std::vector<bool> is_saved_;  // by value, like the next
  std::vector<std::vector<ir::NodeId>> forward_readers_;
  std::vector<std::vector<ir::NodeId>> backward_readers_;
};

}  // namespace anabatic::analysis
