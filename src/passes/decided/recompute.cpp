// SPDX-License-Identifier: Apache-2.0
#include "passes/decided/recompute.h"

#include <utility>

#include "analysis/rebuild.h"
#include "analysis/saved_form.h"
#include "ir/rewrite.h"

namespace anabatic::passes {
namespace {

using analysis::Rebuild;
using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

analysis::Treatments treatments_of(const Graph& graph, const analysis::Rebuilder& rebuilder,
                                   const spec::Decisions& decisions) {
  analysis::Treatments treatments(graph);
  for (const analysis::SavedValue& saved : rebuilder.saved()) {
    treatments.is_dropped[index(saved.value)] = decisions.recompute.contains(saved.key);
    if (const auto found = decisions.saved_as.find(saved.key); found != decisions.saved_as.end())
      treatments.form[index(saved.value)] = found->second;
  }
  return treatments;
}

// Builds the node list with the nodes that convert and recompute.
class Rewriter {
 public:
  Rewriter(Graph& graph, const PassContext& context, const std::vector<Rebuild>& rebuilds)
      : graph_(graph),
        rebuilds_(rebuilds),
        nodes_(std::exchange(graph.nodes, {})),
        builder_(graph, context.find_op),
        made_(graph.values.size(), ir::kNoValue),
        waiting_(graph.values.size(), ir::kNoValue) {}

  void run(const analysis::Treatments& treatments) {
    std::vector<std::vector<const Rebuild*>> after = converted_after();
    auto next = rebuilds_.begin();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for (; next != rebuilds_.end() && index(next->before) == i; ++next) add(*next);
      Node& node = nodes_[i];
      if (node.tag.phase != ir::Phase::kForward && node.tag.phase != ir::Phase::kUpdate)
        for (ValueId& input : node.inputs)
          if (!treatments.is_kept(input)) input = made_[index(input)];
      graph_.nodes.push_back(node);
      for (const Rebuild* rebuild : after[i]) convert(*rebuild);
    }
  }

 private:
  // By node: values to convert after it, for it is the last of the forward to use them.
  std::vector<std::vector<const Rebuild*>> converted_after() const {
    std::vector<std::size_t> last_use(made_.size(), 0);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].tag.phase != ir::Phase::kForward) continue;
      for (const auto* list : {&nodes_[i].inputs, &nodes_[i].outputs})
        for (const ValueId value : *list) last_use[index(value)] = i;
    }
    std::vector<std::vector<const Rebuild*>> after(nodes_.size());
    for (const Rebuild& rebuild : rebuilds_)
      if (rebuild.from != spec::SavedForm::kWhole)
        after[last_use[index(rebuild.outputs[0])]].push_back(&rebuild);
    return after;
  }

  void set_tag(const Rebuild& rebuild, ir::Phase phase) {
    ir::Tag tag = nodes_[index(rebuild.of)].tag;
    tag.phase = phase;
    builder_.set_tag(tag);
  }

  void convert(const Rebuild& rebuild) {
    set_tag(rebuild, ir::Phase::kForward);
    const ValueId value = rebuild.outputs[0];
    const analysis::Conversion to = analysis::conversion_to(rebuild.from);
    waiting_[index(value)] = to.op.empty() ? value : builder_.add1(to.op, {value}, to.attributes);
  }

  std::vector<ValueId> again(const Rebuild& rebuild) {
    if (rebuild.from != spec::SavedForm::kWhole) {
      const ValueId value = rebuild.outputs[0];
      const analysis::Conversion back =
          analysis::conversion_from(rebuild.from, graph_.value(value).type.dtype);
      return builder_.add(back.op, {waiting_[index(value)]}, back.attributes);
    }
    std::vector<ValueId> inputs;
    for (const ValueId input : rebuild.inputs)
      inputs.push_back(made_[index(input)] == ir::kNoValue ? input : made_[index(input)]);
    return builder_.add(rebuild.op, inputs,
                        analysis::attributes_of(rebuild, nodes_[index(rebuild.of)]));
  }

  void add(const Rebuild& rebuild) {
    set_tag(rebuild, ir::Phase::kRecompute);
    const std::vector<ValueId> outputs = again(rebuild);
    for (std::size_t o = 0; o < outputs.size(); ++o)
      if (ValueId& value = made_[index(rebuild.outputs[o])]; value == ir::kNoValue)
        value = outputs[o];
  }

  Graph& graph_;
  const std::vector<Rebuild>& rebuilds_;
  std::vector<Node> nodes_;
  ir::GraphBuilder builder_;
  std::vector<ValueId> made_;     // by forward value: what the backward reads instead
  std::vector<ValueId> waiting_;  // by forward value: its saved form
};

bool recompute(Graph& graph, const PassContext& context) {
  const analysis::Rebuilder rebuilder(graph);
  const analysis::Treatments treatments =
      treatments_of(graph, rebuilder, *context.options.decisions);
  const std::vector<Rebuild> rebuilds = rebuilder.rebuilds(treatments);
  if (rebuilds.empty()) return false;
  Rewriter(graph, context, rebuilds).run(treatments);
  ir::drop_undefined_values(graph);  // producers have moved
  return true;
}

}  // namespace

const Pass kRecompute{.name = "recompute",
                      .needs = {"differentiated"},
                      .required = true,
                      .of_decisions = true,
                      .run = recompute};

}  // namespace anabatic::passes
