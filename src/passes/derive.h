// SPDX-License-Identifier: Apache-2.0
// The one rule that computes a derived state from its primary, by their types. The update and the
// refresh after loading use the same ops, hence the same kernels.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::passes {

// Adds the node that computes a value of type `derived` from `primary`: a `pack` if either is
// packed, else a `cast`, half away from zero. InternalError if no op does it.
ir::ValueId add_derivation(ir::GraphBuilder& builder, ir::ValueId primary,
                           const TensorType& derived);

// How a graph rounds weights to grids: by `fake_quantize`, after `delay` updates. With a delay that
// reads the number of updates so far.
struct GridRounding {
  std::int64_t delay = 0;
  ir::ValueId step = ir::kNoValue;
};
// The same for a state, whose grid counts: int8 packings are made of its values, in f32.
ir::ValueId add_derivation(ir::GraphBuilder& builder, ir::ValueId primary, const ir::State& derived,
                           const GridRounding& rounding);

// Whether a state is of the layout of a sparse weight (spec/sparse_layout.h).
bool is_sparse_index(const ir::State& state);
bool is_sparse_values(const ir::State& state);

// The same for such a state, in a graph that has the mask of its owner, for an index, or else the
// index. `primary` is the owner's value.
ir::ValueId add_sparse_derivation(ir::GraphBuilder& builder, ir::ValueId primary,
                                  const ir::State& derived);

}  // namespace anabatic::passes
