// SPDX-License-Identifier: Apache-2.0
// Gate and up that wait in eight bits where their product itself leaves the codes, and the gradient
// of swiglu reads them: what the pass `recompute` fuses, as the memory planner foresees it.
#pragma once
#include <vector>

#include "analysis/rebuild.h"
#include "ir/graph.h"

namespace anabatic::analysis {

class ProductCodes {
 public:
  // Both must outlive it.
  ProductCodes(const ir::Graph& graph, const Rebuilder& rebuilder);

  // Up of a gate, gate of an up; kNoValue of any other value.
  ir::ValueId beside(ir::ValueId value) const { return beside_[index(value)]; }
  // Whether the product that makes the value leaves it in eight bits.
  bool are_left(ir::ValueId value, const Treatments& treatments) const;
  // Whether the gradient behind a product reads its codes, and those of the other product.
  bool are_read(ir::ValueId value, const Treatments& treatments) const;
  // Whether a gradient behind a product makes the activation too.
  bool comes_with_gradient(ir::ValueId activation, ir::ValueId gate) const;

 private:
  const ir::Graph& graph_;
  const Rebuilder& rebuilder_;
  std::vector<ir::ValueId> beside_;
  ir::NodeId first_gradient_;
};

}  // namespace anabatic::analysis
