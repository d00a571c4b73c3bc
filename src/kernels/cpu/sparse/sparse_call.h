// SPDX-License-Identifier: Apache-2.0
// How kernels read the call of a product with a sparse weight, dense or grouped.
#pragma once
#include "kernels/kernel.h"
#include "spec/sparse_layout.h"

namespace anabatic::kernels::cpu {

// Inputs by place: rows and values of a product, x and dy of a weight gradient; then these.
inline constexpr std::size_t kSparseIndexInput = 2, kSparseOffsetsOrBias = 3;

// Lanes of the widest vectors of products with unstructured weights (csr.cpp).
inline constexpr std::int64_t kMostCsrLanes = 16;
std::int64_t sparse_csr_workspace_bytes(const spec::Problem& problem);

// That of a product [rows, depth] by [lines, depth], or of dW [lines, depth].
spec::SparseLayout sparse_layout_of(const spec::Problem& problem);

// The groups of a call: experts and their rows, or one group of all rows.
struct SparseGroups {
  const std::byte* index;
  const std::int32_t* offsets;  // null: one group
  spec::SparseLayout layout;
  std::int64_t count, rows;

  // InvalidArgument for an index that is none of such a layout, or for offsets that do not ascend:
  // a kernel would read what is not there.
  SparseGroups(const Arguments& args, std::int64_t lines, std::int64_t depth);

  __attribute__((always_inline)) const std::int32_t* offsets_of_panels(std::int64_t group) const {
    return reinterpret_cast<const std::int32_t*>(index) +
           group * (layout.panels() + 1 + layout.kept);
  }
  // Of 2:4, in place of offsets and steps.
  const std::uint8_t* places(std::int64_t group) const {
    return reinterpret_cast<const std::uint8_t*>(index) + group * layout.index_size();
  }
  __attribute__((always_inline)) const std::int32_t* steps(std::int64_t group) const {
    return offsets_of_panels(group) + layout.panels() + 1;
  }
  __attribute__((always_inline)) std::int64_t begin(std::int64_t group) const {
    return offsets == nullptr ? 0 : offsets[group];
  }
  __attribute__((always_inline)) std::int64_t num_rows(std::int64_t group) const {
    return offsets == nullptr ? rows : offsets[group + 1] - offsets[group];
  }
};

}  // namespace anabatic::kernels::cpu
