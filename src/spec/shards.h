// SPDX-License-Identifier: Apache-2.0
// Which part of a tensor each of some ranks owns, as a pure function of the tensor's type. Parts
// lie one after the other in memory, in the order of the ranks. Nothing here allocates.
#pragma once
#include <cstdint>
#include <optional>

#include "tensor/tensor_type.h"

namespace anabatic::spec {

// Whole matrices of a stack, or whole panels (tensor/panels.h) of one matrix: `rows` rows of each
// of `matrices` matrices, from first_row on, counted through all matrices.
struct Shard {
  std::int64_t first_row = 0, matrices = 1, rows = 0;
  bool operator==(const Shard&) const = default;
};

// The part of a matrix or stack, which is not empty: whole matrices where there are enough of them,
// else panels of one. Two parts of twice as many ranks are a part of these. Null for all ranks
// where a rank would get no panel, or where rows of the layout do not lie together.
std::optional<Shard> shard_of(const TensorType& type, std::int64_t num_ranks, std::int64_t rank);

// The tensor of a part.
TensorType type_of(const Shard& shard, TensorType whole);

// Stored elements (panels' padding included) of a part: those of shard_of, and else parts that are
// as even as elements allow.
struct ElementRange {
  std::int64_t begin = 0, end = 0;
  bool operator==(const ElementRange&) const = default;
};
ElementRange shard_elements(const TensorType& type, std::int64_t num_ranks, std::int64_t rank);

}  // namespace anabatic::spec
