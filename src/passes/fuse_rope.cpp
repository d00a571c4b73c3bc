// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse_rope.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "ir/rewrite.h"
#include "passes/readers.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

class RopeFuser {
 public:
  RopeFuser(Graph& graph, const PassContext& context)
      : graph_(graph), context_(context), readers_(graph), keep_(graph.nodes.size(), true) {}

  bool run() {
    bool changed = false;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i)
      if (keep_[i] && graph_.nodes[i].op->name == "rope") changed |= fuse(i);
    if (changed) ir::keep_nodes(graph_, keep_);
    return changed;
  }

 private:
  // With the next rope of the same table and kind, which the pair replaces.
  bool fuse(std::size_t i) {
    const Node& first = graph_.nodes[i];
    for (const ir::NodeId id : readers_.of(first.inputs[1])) {
      const std::size_t j = index(id);
      const Node& second = graph_.nodes[j];
      if (j <= i || second.op != first.op || second.inputs[1] != first.inputs[1] ||
          second.attributes != first.attributes || second.tag != first.tag)
        continue;
      const std::span<const ir::NodeId> readers = readers_.of(first.outputs[0]);
      if (std::any_of(readers.begin(), readers.end(),
                      [&](ir::NodeId reader) { return index(reader) <= j; }) ||
          type(first.inputs[0]).dtype != type(second.inputs[0]).dtype)
        return false;
      join(i, j);
      return true;
    }
    return false;
  }

  void join(std::size_t i, std::size_t j) {
    const Node &first = graph_.nodes[i], &second = graph_.nodes[j];
    Node pair{.op = context_.find_op("rope_pair"),
              .attributes = first.attributes,
              .inputs = {first.inputs[0], second.inputs[0], first.inputs[1]},
              .outputs = {first.outputs[0], second.outputs[0]},
              .tag = first.tag};
    ANABATIC_CHECK(pair.op != nullptr, "[fuse_rope] no op 'rope_pair'");
    const Node *a = norm_before(first), *b = norm_before(second);
    if (a != nullptr && b != nullptr && a != b && a->attributes == b->attributes) {
      pair.attributes["epsilon"] = a->attributes.at("epsilon");
      pair.inputs = {a->inputs[0], b->inputs[0], first.inputs[1], a->inputs[1], b->inputs[1]};
      for (const ValueId normed : {first.inputs[0], second.inputs[0]})
        keep_[index(graph_.value(normed).producer)] = false;
    }
    keep_[i] = false;
    graph_.nodes[j] = std::move(pair);
  }

  // The norm of single heads that `rope` alone reads, else null.
  const Node* norm_before(const Node& rope) const {
    const ValueId normed = rope.inputs[0];
    const ir::NodeId id = graph_.value(normed).producer;
    if (id == ir::kNoNode || !readers_.has_only(normed, 1)) return nullptr;
    const Node& norm = graph_.node(id);
    if (norm.op->name != "rms_norm" || norm.tag != rope.tag ||
        type(norm.inputs[1]).dim(0) != spec::get_int(rope.attributes, "head_dim"))
      return nullptr;
    return &norm;
  }

  const TensorType& type(ValueId value) const { return graph_.value(value).type; }

  Graph& graph_;
  const PassContext& context_;
  const Readers readers_;
  std::vector<bool> keep_;  // by node
};

bool fuse_rope(Graph& graph, const PassContext& context) { return RopeFuser(graph, context).run(); }

}  // namespace

const Pass kFuseRope{.name = "fuse_rope", .needs = {"precision_chosen"}, .run = fuse_rope};

}  // namespace anabatic::passes
