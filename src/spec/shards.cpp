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

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t count() const { return end - begin; }
  void keep_half(bool upper) { (upper ? begin : end) = begin + count() / 2; }
};

// Whole matrices, or some panels of one.
struct Part {
  Range matrices, panels;
  void keep_half(bool upper) { (matrices.count() > 1 ? matrices : panels).keep_half(upper); }
};

// One of `n` parts, before it is halved.
Part part_of(std::int64_t matrices, std::int64_t panels, std::int64_t n, std::int64_t i) {
  if (matrices >= n) return {{begin_of(i, n, matrices), begin_of(i + 1, n, matrices)}, {0, panels}};
  // The matrix whose parts begin at or before this one.
  const std::int64_t matrix = (matrices * (i + 1) - 1) / n, first = begin_of(matrix, matrices, n),
                     count = begin_of(matrix + 1, matrices, n) - first;
  return {{matrix, matrix + 1},
          {begin_of(i - first, count, panels), begin_of(i - first + 1, count, panels)}};
}

// Panels of the smallest one, after so many ranks have halved each of `n` parts; 0: one is empty.
std::int64_t smallest_part(std::int64_t matrices, std::int64_t panels, std::int64_t n,
                           std::int64_t halvings) {
  std::int64_t whole = matrices / n;
  if (whole == 0) panels /= ceil_div(n, matrices);
  for (; halvings > 1; halvings /= 2) (whole > 1 ? whole : panels) /= 2;
  return panels;
}

}  // namespace

std::optional<Shard> shard_of(const TensorType& type, std::int64_t num_ranks, std::int64_t rank) {
  ANABATIC_CHECK(0 <= rank && rank < num_ranks, "[shards] rank {} of {}", rank, num_ranks);
  const bool is_cut = type.layout == kRowMajor || type.layout == panels_layout(false);
  if (!is_cut || type.is_quantized() || (type.ndim() != 2 && type.ndim() != 3)) return std::nullopt;
  const std::int64_t matrices = type.ndim() == 3 ? type.dim(0) : 1, rows = type.dim(-2),
                     panels = ceil_div(rows, kPanelColumns);
  if (rows == 0 || matrices == 0) return std::nullopt;
  const std::int64_t halvings = num_ranks & -num_ranks, parts = num_ranks / halvings;
  if (smallest_part(matrices, panels, parts, halvings) == 0) return std::nullopt;
  Part part = part_of(matrices, panels, parts, rank / halvings);
  for (std::int64_t size = halvings / 2, place = rank % halvings; size > 0; size /= 2)
    part.keep_half((place & size) != 0);
  const std::int64_t begin = part.panels.begin * kPanelColumns,
                     end = std::min(part.panels.end * kPanelColumns, rows);
  return Shard{part.matrices.begin * rows + begin, part.matrices.count(), end - begin};
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
