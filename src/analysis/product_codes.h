// SPDX-License-Identifier: Apache-2.0
// What the passes after `recompute` will fuse, as the memory planner predicts it: a product that
// writes int8 values of an activation's operands itself, a gradient that reads them or computes
// the activation.
#pragma once
#include <span>
#include <vector>

#include "analysis/rebuild.h"
#include "ir/graph.h"

namespace anabatic::analysis {

// Which of those passes run.
struct ProductFusions {
  bool quantize_in_product = true, activation_with_gradient = true, read_quantized = true;
};

class ProductCodes {
 public:
  // Graph and rebuilder must outlive it.
  ProductCodes(const ir::Graph& graph, const Rebuilder& rebuilder, const ProductFusions& fusions);

  // Whether another product of the value's node is recomputed. False where the value is no product.
  bool has_dropped_beside(ir::ValueId value, const Treatments& treatments) const;
  // Whether the product that computes the value writes it as int8.
  bool are_left(ir::ValueId value, const Treatments& treatments) const;
  // Whether the activation's gradient reads int8 values of this product and of the other one.
  bool are_read(ir::ValueId value, const Treatments& treatments) const;
  // Whether the activation's gradient also computes the activation.
  bool comes_with_gradient(ir::ValueId activation, ir::ValueId gate) const;

 private:
  // Gate and up, where the value is one of them; else empty.
  std::span<const ir::ValueId> products_beside(ir::ValueId value) const;

  const ir::Graph& graph_;
  const Rebuilder& rebuilder_;
  const ProductFusions fusions_;
  std::vector<bool> is_product_;  // by value
  ir::NodeId first_gradient_;
};

}  // namespace anabatic::analysis
