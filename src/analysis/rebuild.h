// SPDX-License-Identifier: Apache-2.0
// Which forward values the backward reads, and how it can recompute them from others. The pass
// `recompute` builds this, and the memory planner prices it. Read-only.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "spec/decisions.h"

namespace anabatic::analysis {

// Which attributes of the forward node a rebuild copies.
enum class TakenAttributes : std::uint8_t { kNone, kAll, kOfActivation, kOfProduct };

// A node of the backward that recomputes forward values, with equal bits. Or one that converts a
// value back `from` the form in which it was saved. Its op is then conversion_from's, and its input
// is the saved form, which is no value of the graph.
struct Rebuild {
  std::string_view op{};
  TakenAttributes attributes = TakenAttributes::kNone;  // of `of`
  std::vector<ir::ValueId> inputs{};   // values of the graph: kept, or outputs of earlier rebuilds
  std::vector<ir::ValueId> outputs{};  // the forward value that each output equals
  ir::NodeId of{};                     // the forward node that made them
  ir::NodeId before{};                 // the backward node that is first to need them
  spec::SavedForm from = spec::SavedForm::kWhole;
};

// How each value is kept between the forward and the backward, by ValueId.
struct Treatments {
  std::vector<bool> is_dropped;
  std::vector<spec::SavedForm> form;  // ignored where the value is dropped
  explicit Treatments(const ir::Graph& graph)
      : is_dropped(graph.values.size(), false),
        form(graph.values.size(), spec::SavedForm::kWhole) {}
  bool is_kept(ir::ValueId value) const {
    return !is_dropped[index(value)] && !waits_in_form(value);
  }
  bool waits_in_form(ir::ValueId value) const {  // saved in a form other than its own
    return !is_dropped[index(value)] && form[index(value)] != spec::SavedForm::kWhole;
  }
};

// A value that the forward computes and the backward reads. Graph outputs, and gradients that the
// forward computes itself, are not among them.
struct SavedValue {
  ir::ValueId value{};
  std::string key{};          // its name; or layer, segment and op where it has none:
                              // "layers.3.attention.attention:1" is that op's second output
  bool is_exchanged = false;  // other ranks sent it: it is never recomputed
};

// The attributes of the node that `rebuild` describes; `of` is the forward node.
spec::Attributes attributes_of(const Rebuild& rebuild, const ir::Node& of);

// The gradient of an activation after a product: `linear_activation_gradient`, also grouped and
// with weights.
bool is_activation_gradient(const ir::Node& node);
// The backward's first of them, or kNoNode. It reads gate and up dequantised where the others read
// int8. Memory is fullest there, and its results take the bytes of both.
ir::NodeId first_activation_gradient(const ir::Graph& graph);

// A product with an activation that also writes its products. Its outputs are the activation, gate
// and up, or the activation and its one operand.
bool keeps_products(const ir::Node& node);

// Whether outputs of the node can be recomputed one by one: a norm without its sum, an activation
// without its products, keys without queries.
bool are_outputs_apart(const ir::Node& node);

class Rebuilder {
 public:
  explicit Rebuilder(const ir::Graph& graph);

  // In the order of the nodes that compute them; keys are distinct.
  const std::vector<SavedValue>& saved() const { return saved_; }

  // What the backward must run for these treatments. Each rebuild comes before those that read it,
  // in the order of `before`. A value that only the forward reads is recomputed where a rebuild
  // reads it. A value saved in another form is not converted back where another rebuild computes
  // it. Linear in the rebuilds and their inputs.
  std::vector<Rebuild> rebuilds(const Treatments& treatments) const;

  bool is_saved(ir::ValueId value) const { return is_saved_[index(value)]; }
  // Nodes of the forward, or of the backward, that read the value, in their order.
  const std::vector<ir::NodeId>& forward_readers(ir::ValueId value) const {
    return forward_readers_[index(value)];
  }
  const std::vector<ir::NodeId>& backward_readers(ir::ValueId value) const {
    return backward_readers_[index(value)];
  }

 private:
  const ir::Graph& graph_;
  std::vector<SavedValue> saved_;
  std::vector<bool> is_saved_;  // by value, as the next two
  std::vector<std::vector<ir::NodeId>> forward_readers_;
  std::vector<std::vector<ir::NodeId>> backward_readers_;
};

}  // namespace anabatic::analysis
