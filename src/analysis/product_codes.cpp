// SPDX-License-Identifier: Apache-2.0
#include "analysis/product_codes.h"

#include <algorithm>

namespace anabatic::analysis {
namespace {

bool waits_in_codes(ir::ValueId value, const Treatments& treatments) {
  return treatments.waits_in_form(value) && treatments.form[index(value)] == spec::SavedForm::kInt8;
}

}  // namespace

ProductCodes::ProductCodes(const ir::Graph& graph, const Rebuilder& rebuilder,
                           const ProductFusions& fusions)
    : graph_(graph),
      rebuilder_(rebuilder),
      fusions_(fusions),
      is_product_(graph.values.size(), false),
      first_gradient_(first_activation_gradient(graph)) {
  for (const ir::Node& node : graph.nodes) {
    if (!keeps_products(node)) continue;
    for (std::size_t o = 1; o < node.outputs.size(); ++o)
      is_product_[index(node.outputs[o])] = true;
  }
}

std::span<const ir::ValueId> ProductCodes::products_beside(ir::ValueId value) const {
  if (!is_product_[index(value)]) return {};
  return std::span(graph_.node(graph_.value(value).producer).outputs).subspan(1);
}

bool ProductCodes::has_dropped_beside(ir::ValueId value, const Treatments& treatments) const {
  const auto products = products_beside(value);
  return std::any_of(products.begin(), products.end(), [&](ir::ValueId other) {
    return other != value && treatments.is_dropped[index(other)];
  });
}

bool ProductCodes::are_left(ir::ValueId value, const Treatments& treatments) const {
  if (!fusions_.quantize_in_product) return false;
  const auto products = products_beside(value);
  bool any = false;
  for (const ir::ValueId one : products) {
    const bool waits = waits_in_codes(one, treatments);
    if (!waits && !treatments.is_dropped[index(one)]) return false;
    any |= waits;
  }
  return any;
}

bool ProductCodes::are_read(ir::ValueId value, const Treatments& treatments) const {
  const auto products = products_beside(value);
  if (!fusions_.read_quantized || products.empty()) return false;
  for (const ir::ValueId one : products) {
    const std::vector<ir::NodeId>& readers = rebuilder_.backward_readers(one);
    if (!waits_in_codes(one, treatments) || readers.size() != 1 || readers[0] == first_gradient_ ||
        !is_activation_gradient(graph_.node(readers[0])))
      return false;
  }
  const ir::Node& product = graph_.node(graph_.value(value).producer);
  return !treatments.is_dropped[index(product.outputs[0])] ||
         comes_with_gradient(product.outputs[0], product.outputs[1]);
}

bool ProductCodes::comes_with_gradient(ir::ValueId activation, ir::ValueId gate) const {
  if (!fusions_.activation_with_gradient) return false;
  const std::vector<ir::NodeId>& wanted_by = rebuilder_.backward_readers(activation);
  if (std::any_of(wanted_by.begin(), wanted_by.end(), [&](ir::NodeId reader) {
        return graph_.node(reader).tag.phase != ir::Phase::kBackwardWeight;
      }))
    return false;
  const std::vector<ir::NodeId>& readers = rebuilder_.backward_readers(gate);
  return std::any_of(readers.begin(), readers.end(), [&](ir::NodeId reader) {
    return is_activation_gradient(graph_.node(reader));
  });
}

}  // namespace anabatic::analysis
