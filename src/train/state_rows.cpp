// SPDX-License-Identifier: Apache-2.0
#include "train/state_rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "tensor/panels.h"

namespace anabatic::train {
namespace {

constexpr std::int64_t kBlockElements = std::int64_t{1} << 20;

void check_range(const TensorView& state, std::int64_t first, std::int64_t count) {
  ANABATIC_CHECK(0 <= first && count >= 0 && first + count <= state.type->num_elements(),
                 "[state rows] elements [{}, {}) of {}", first, first + count,
                 to_string(*state.type));
}

// Calls body(i, offset, unit_step) for the elements [first, first + count), i counted from `first`,
// `offset` their place in memory.
template <class Body>
void for_places(const TensorType& type, std::int64_t first, std::int64_t count, Body&& body) {
  const PanelShape shape = panel_shape(type);
  const bool transposed = type.layout == panels_layout(true);
  const std::int64_t width = type.dim(-1), rows = type.dim(-2);
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t at = first + i, matrix = at / (rows * width), row = at / width % rows;
    const std::int64_t begin = at % width, end = std::min(width, begin + count - i);
    const std::int64_t base = matrix * shape.num_elements();
    for (std::int64_t column = begin; column < end; ++column, ++i)
      body(i, base + (transposed ? shape.offset(column, row) : shape.offset(row, column)));
  }
}

template <class Element>
void gather(const TensorView& state, std::int64_t first, std::span<std::byte> bytes) {
  const auto* from = state.as<const Element>();
  const auto count = static_cast<std::int64_t>(bytes.size() / sizeof(Element));
  for_places(*state.type, first, count, [&](std::int64_t i, std::int64_t place) {
    std::memcpy(bytes.data() + static_cast<std::size_t>(i) * sizeof(Element), from + place,
                sizeof(Element));
  });
}

template <class Element>
void scatter(const TensorView& state, std::int64_t first, std::span<const std::byte> bytes) {
  auto* to = state.as<Element>();
  const auto count = static_cast<std::int64_t>(bytes.size() / sizeof(Element));
  for_places(*state.type, first, count, [&](std::int64_t i, std::int64_t place) {
    std::memcpy(to + place, bytes.data() + static_cast<std::size_t>(i) * sizeof(Element),
                sizeof(Element));
  });
}

void check_floats(const TensorView& state) {
  ANABATIC_CHECK(state.type->dtype == DType::kFloat32, "[state rows] expected f32, got {}",
                 to_string(*state.type));
}

}  // namespace

void read_row_bytes(const TensorView& state, std::int64_t first, std::span<std::byte> bytes) {
  const std::int64_t size = size_bytes(state.type->dtype);
  check_range(state, first, static_cast<std::int64_t>(bytes.size()) / size);
  if (bytes.empty()) return;
  if (!is_panels(state.type->layout)) {
    std::memcpy(bytes.data(), state.data + first * size, bytes.size());
    return;
  }
  size == 4 ? gather<std::uint32_t>(state, first, bytes)
            : gather<std::uint16_t>(state, first, bytes);
}

void write_row_bytes(const TensorView& state, std::int64_t first,
                     std::span<const std::byte> bytes) {
  const std::int64_t size = size_bytes(state.type->dtype);
  check_range(state, first, static_cast<std::int64_t>(bytes.size()) / size);
  if (bytes.empty()) return;
  if (!is_panels(state.type->layout)) {
    std::memcpy(state.data + first * size, bytes.data(), bytes.size());
    return;
  }
  size == 4 ? scatter<std::uint32_t>(state, first, bytes)
            : scatter<std::uint16_t>(state, first, bytes);
}

void read_rows(const TensorView& state, std::int64_t first, std::span<float> values) {
  check_floats(state);
  read_row_bytes(state, first, std::as_writable_bytes(values));
}

void write_rows(const TensorView& state, std::int64_t first, std::span<const float> values) {
  check_floats(state);
  write_row_bytes(state, first, std::as_bytes(values));
}

void for_row_blocks(const TensorView& state,
                    const std::function<void(std::int64_t, std::span<float>)>& body) {
  check_floats(state);
  const std::int64_t count = state.type->num_elements();
  std::vector<float> scratch(static_cast<std::size_t>(std::min(count, kBlockElements)));
  for (std::int64_t first = 0; first < count; first += kBlockElements)
    body(first, std::span(scratch).first(
                    static_cast<std::size_t>(std::min(kBlockElements, count - first))));
}

void for_row_bytes(const TensorView& state,
                   const std::function<void(std::span<const std::byte>)>& body) {
  const std::int64_t count = state.type->num_elements(), size = size_bytes(state.type->dtype);
  if (!is_panels(state.type->layout))
    return body({state.data, static_cast<std::size_t>(count * size)});
  std::vector<std::byte> scratch(static_cast<std::size_t>(std::min(count, kBlockElements) * size));
  for (std::int64_t first = 0; first < count; first += kBlockElements) {
    const std::span<std::byte> block = std::span(scratch).first(
        static_cast<std::size_t>(std::min(kBlockElements, count - first) * size));
    read_row_bytes(state, first, block);
    body(block);
  }
}

}  // namespace anabatic::train
