// SPDX-License-Identifier: Apache-2.0
#include "tensor/panels.h"

#include "base/error.h"

namespace anabatic {

Layout panels_layout(bool transposed) {
  static const Layout plain = intern("panels"), turned = intern("panels_transposed");
  return transposed ? turned : plain;
}

bool is_panels(Layout layout) {
  return layout == panels_layout(false) || layout == panels_layout(true);
}

PanelShape panel_shape(DType dtype, std::int64_t rows, std::int64_t columns, bool transposed) {
  return {.columns = transposed ? columns : rows,
          .depth = transposed ? rows : columns,
          .unit_depth = panel_unit_depth(dtype)};
}

PanelShape panel_shape(const TensorType& type) {
  ANABATIC_CHECK(is_panels(type.layout) && type.ndim() >= 2, "[panels] {} is not packed",
                 to_string(type));
  return panel_shape(type.dtype, type.dim(-2), type.dim(-1), type.layout == panels_layout(true));
}

std::int64_t stored_elements(const TensorType& type) {
  return element_bytes(type) / size_bytes(type.dtype);
}

std::int64_t packed_offset(const TensorType& type, std::int64_t i) {
  const bool is_transposed = type.layout == panels_layout(true);
  if (!is_transposed && type.layout != panels_layout(false)) return i;
  const std::size_t axes = type.shape.size();
  const std::int64_t rows = type.shape[axes - 2], columns = type.shape[axes - 1];
  const PanelShape shape = panel_shape(type.dtype, rows, columns, is_transposed);
  const std::int64_t row_of_all = i / columns, column = i - row_of_all * columns;
  const std::int64_t matrix = axes == 2 ? 0 : row_of_all / rows, row = row_of_all - matrix * rows;
  return matrix * shape.num_elements() +
         (is_transposed ? shape.offset(column, row) : shape.offset(row, column));
}

}  // namespace anabatic
