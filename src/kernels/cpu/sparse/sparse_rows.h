// SPDX-License-Identifier: Apache-2.0
// Rows of table.cpp for products with sparse weights in blocks, dense or grouped, that exist once
// for each engine with `blocks`.
#pragma once
#include "kernels/cpu/linear_rows.h"

namespace anabatic::kernels::cpu {

template <Engine E>
struct SparseRows {
  static Support supports(const spec::Problem& problem);
  static std::int64_t workspace_bytes(const spec::Problem& problem);
  // Input gradients, too: they read the layout of the transpose.
  static void forward(const Arguments& arguments);
  static void weight_gradient(const Arguments& arguments);
};

// From the mask of a sparse weight.
void sparse_index(const Arguments& args);

}  // namespace anabatic::kernels::cpu
