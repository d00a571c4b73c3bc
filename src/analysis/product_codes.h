// SPDX-License-Identifier: Apache-2.0
// The operands of an activation that are saved as int8 where their product itself writes the int8
// values, and the activation's gradient reads them: what the pass `recompute` fuses, as the memory
// planner foresees it.
#pragma once
#include <span>
#include <vector>

#include "analysis/rebuild.h"
#include "ir/graph.h"

namespace anabatic::analysis {

class ProductCodes {
 public:
  // Both must outlive it.
  ProductCodes(const ir::Graph& graph, const Rebuilder& rebuilder);

  // Whether another product of the value's node is recomputed. False of any other value.
  bool has_dropped_beside(ir::ValueId value, const Treatments& treatments) const;
  // Whether the product that makes the value leaves it in eight bits.
  bool are_left(ir::ValueId value, const Treatments& treatments) const;
  // Whether the gradient behind a product reads its codes, and those of the other product.
  bool are_read(ir::ValueId value, const Treatments& treatments) const;
  // Whether a gradient behind a product makes the activation too.
  bool comes_with_gradient(ir::ValueId activation, ir::ValueId gate) const;

 private:
  // The operands of the activation whose product the value is: gate and up. Empty of other values.
  std::span<const ir::ValueId> products_beside(ir::ValueId value) const;

  const ir::Graph& graph_;
  const Rebuilder& rebuilder_;
  std::vector<bool> is_product_;  // by value
  ir::NodeId first_gradient_;
};

}  // namespace anabatic::analysis
