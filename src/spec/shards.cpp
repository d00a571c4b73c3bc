// SPDX-License-Identifier: Apache-2.0
#include "spec/shards.h"

#include <algorithm>

#include "base/error.h"
#include "base/rounding.h"
#include "tensor/panels.h"

namespace anabatic::spec {
namespace {

// Where part `i` of `n` begins, of `total` units.
std::int64_t begin_of(std::int64_t i, std::int64_t n, std::int64_t total) { return total * i / n; }

}  // namespace

std::optional<Shard> shard_of(const TensorType& type, std::int64_t num_ranks, std::int64_t rank) {
  ANABATIC_CHECK(0 <= rank && rank < num_ranks, "[shards] rank {} of {}", rank, num_ranks);
  const bool is_cut = type.layout == kRowMajor || type.layout == panels_layout(false);
  if (!is_cut || type.is_quantized() || (type.ndim() != 2 && type.ndim() != 3)) return std::nullopt;
  const std::int64_t matrices = type.ndim() == 3 ? type.dim(0) : 1, rows = type.dim(-2),
                     panels = ceil_div(rows, kPanelColumns);
  if (rows == 0 || matrices == 0) return std::nullopt;
  if (matrices >= num_ranks) {
    const std::int64_t begin = begin_of(rank, num_ranks, matrices);
    return Shard{begin * rows, begin_of(rank + 1, num_ranks, matrices) - begin, rows};
  }
  if (panels < ceil_div(num_ranks, matrices)) return std::nullopt;
  // The matrix whose ranks begin at or before this one.
  const std::int64_t matrix = (matrices * (rank + 1) - 1) / num_ranks,
                     first_rank = begin_of(matrix, matrices, num_ranks),
                     ranks = begin_of(matrix + 1, matrices, num_ranks) - first_rank;
  const std::int64_t begin = begin_of(rank - first_rank, ranks, panels) * kPanelColumns,
                     end = begin_of(rank - first_rank + 1, ranks, panels) * kPanelColumns;
  return Shard{matrix * rows + begin, 1, std::min(end, rows) - begin};
}

TensorType type_of(const Shard& shard, TensorType whole) {
  if (whole.ndim() == 3) whole.shape[0] = shard.matrices;
  whole.shape[whole.shape.size() - 2] = shard.rows;
  return whole;
}

ElementRange shard_elements(const TensorType& type, std::int64_t num_ranks, std::int64_t rank) {
  const auto shard = shard_of(type, num_ranks, rank);
  if (!shard) {
    const std::int64_t total = stored_elements(type);
    return {begin_of(rank, num_ranks, total), begin_of(rank + 1, num_ranks, total)};
  }
  const std::int64_t rows = type.dim(-2), matrix = shard->first_row / rows,
                     row = shard->first_row % rows;
  if (!is_panels(type.layout)) {
    const std::int64_t width = type.dim(-1);
    return {shard->first_row * width, (shard->first_row + shard->matrices * shard->rows) * width};
  }
  const PanelShape shape = panel_shape(type);
  const std::int64_t begin =
      matrix * shape.num_elements() + row / kPanelColumns * shape.panel_elements();
  const std::int64_t count = shard->rows == rows
                                 ? shard->matrices * shape.num_elements()
                                 : ceil_div(shard->rows, kPanelColumns) * shape.panel_elements();
  return {begin, begin + count};
}

}  // namespace anabatic::spec
