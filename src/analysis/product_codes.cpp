// SPDX-License-Identifier: Apache-2.0
#include "analysis/product_codes.h"

#include <algorithm>

namespace anabatic::analysis {
namespace {

bool waits_in_codes(ir::ValueId value, const Treatments& treatments) {
  return treatments.waits_in_form(value) && treatments.form[index(value)] == spec::SavedForm::kInt8;
}

}  // namespace

ProductCodes::ProductCodes(const ir::Graph& graph, const Rebuilder& rebuilder)
    : graph_(graph),
      rebuilder_(rebuilder),
      beside_(graph.values.size(), ir::kNoValue),
      first_gradient_(first_swiglu_gradient(graph)) {
  for (const ir::Node& node : graph.nodes) {
    if (!keeps_products(node)) continue;
    beside_[index(node.outputs[1])] = node.outputs[2];
    beside_[index(node.outputs[2])] = node.outputs[1];
  }
}

bool ProductCodes::are_left(ir::ValueId value, const Treatments& treatments) const {
  const ir::ValueId other = beside(value);
  if (other == ir::kNoValue) return false;
  const auto goes = [&](ir::ValueId v) {
    return treatments.is_dropped[index(v)] || waits_in_codes(v, treatments);
  };
  return goes(value) && goes(other) &&
         (waits_in_codes(value, treatments) || waits_in_codes(other, treatments));
}

bool ProductCodes::are_read(ir::ValueId value, const Treatments& treatments) const {
  const ir::ValueId other = beside(value);
  if (other == ir::kNoValue) return false;
  for (const ir::ValueId one : {value, other}) {
    const std::vector<ir::NodeId>& readers = rebuilder_.backward_readers(one);
    if (!waits_in_codes(one, treatments) || readers.size() != 1 || readers[0] == first_gradient_ ||
        !is_swiglu_gradient(graph_.node(readers[0])))
      return false;
  }
  const ir::Node& product = graph_.node(graph_.value(value).producer);
  return !treatments.is_dropped[index(product.outputs[0])] ||
         comes_with_gradient(product.outputs[0], product.outputs[1]);
}

bool ProductCodes::comes_with_gradient(ir::ValueId activation, ir::ValueId gate) const {
  const std::vector<ir::NodeId>& wanted_by = rebuilder_.backward_readers(activation);
  if (std::any_of(wanted_by.begin(), wanted_by.end(), [&](ir::NodeId reader) {
        return graph_.node(reader).tag.phase != ir::Phase::kBackwardWeight;
      }))
    return false;
  const std::vector<ir::NodeId>& readers = rebuilder_.backward_readers(gate);
  return std::any_of(readers.begin(), readers.end(),
                     [&](ir::NodeId reader) { return is_swiglu_gradient(graph_.node(reader)); });
}

}  // namespace anabatic::analysis
