// SPDX-License-Identifier: Apache-2.0
#include "train/state_tiers.h"

#include <algorithm>
#include <vector>

#include "runtime/swap/swap_space.h"
#include "tensor/panels.h"
#include "train/state_rows.h"

namespace anabatic::train {
namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{4} << 20;

// A part of a state whose bytes lie together and hold elements that follow one another in row-major
// order.
struct Part {
  TensorType type;
  std::int64_t first_element = 0, first_byte = 0;
};

// Rows of panels [first, first + count) of matrix `matrix`; transposed panels only all at once.
Part part_of_panels(const TensorType& type, std::int64_t matrix, std::int64_t first,
                    std::int64_t count) {
  const PanelShape shape = panel_shape(type);
  const std::int64_t rows = type.dim(-2), width = type.dim(-1);
  const bool is_whole = first == 0 && count >= shape.num_panels();
  const std::int64_t begin = is_whole ? 0 : first * kPanelColumns;
  const std::int64_t end = is_whole ? rows : std::min(rows, (first + count) * kPanelColumns);
  Part part{
      tensor_type(type.dtype, {end - begin, width}), (matrix * rows + begin) * width,
      (matrix * shape.num_elements() + first * shape.panel_elements()) * size_bytes(type.dtype)};
  part.type.layout = type.layout;
  return part;
}

std::vector<Part> parts_of(const TensorType& type) {
  std::vector<Part> parts;
  const std::int64_t count = type.num_elements(), size = size_bytes(type.dtype);
  if (count == 0) return parts;
  if (!is_panels(type.layout)) {
    for (std::int64_t first = 0; first < count; first += kBlockBytes / size)
      parts.push_back({tensor_type(type.dtype, {std::min(kBlockBytes / size, count - first)}),
                       first, first * size});
    return parts;
  }
  const PanelShape shape = panel_shape(type);
  const std::int64_t num_matrices = count / (type.dim(-2) * type.dim(-1));
  const std::int64_t matrix_bytes = shape.num_elements() * size;
  if (2 * matrix_bytes <= kBlockBytes) {  // several small matrices a part
    const std::int64_t group = kBlockBytes / matrix_bytes, elements = type.dim(-2) * type.dim(-1);
    for (std::int64_t matrix = 0; matrix < num_matrices; matrix += group) {
      Part part{tensor_type(type.dtype,
                            {std::min(group, num_matrices - matrix), type.dim(-2), type.dim(-1)}),
                matrix * elements, matrix * matrix_bytes};
      part.type.layout = type.layout;
      parts.push_back(std::move(part));
    }
    return parts;
  }
  const std::int64_t step =
      type.layout == panels_layout(true)
          ? shape.num_panels()
          : std::max(kBlockBytes / (shape.panel_elements() * size), std::int64_t{1});
  for (std::int64_t matrix = 0; matrix < num_matrices; ++matrix)
    for (std::int64_t first = 0; first < shape.num_panels(); first += step)
      parts.push_back(part_of_panels(type, matrix, first, step));
  return parts;
}

// Calls body(part, its bytes as they are stored, its elements in row-major order) with buffers of
// the largest part; the first is empty unless wanted.
template <class Body>
void for_parts(const TensorType& type, bool wants_stored, Body&& body) {
  const std::vector<Part> parts = parts_of(type);
  std::size_t most_stored = 0, most = 0;
  const auto element_bytes = [&](const Part& part) {
    return static_cast<std::size_t>(part.type.num_elements() * size_bytes(part.type.dtype));
  };
  for (const Part& part : parts) {
    if (wants_stored)
      most_stored = std::max(most_stored, static_cast<std::size_t>(part.type.num_bytes()));
    most = std::max(most, element_bytes(part));
  }
  std::vector<std::byte> stored(most_stored), rows(most);
  for (const Part& part : parts)
    body(
        part,
        std::span(stored).first(wants_stored ? static_cast<std::size_t>(part.type.num_bytes()) : 0),
        std::span(rows).first(element_bytes(part)));
}

}  // namespace

void for_state_bytes(runtime::StateStore& store, Name state,
                     const std::function<void(std::span<const std::byte>)>& body) {
  if (store.tier(state) == runtime::Tier::kMemory)
    return for_row_bytes(find_rows(store, state), body);
  const TensorView view = store.find(state);
  for_parts(*view.type, true,
            [&](const Part& part, std::span<std::byte> stored, std::span<std::byte> rows) {
              store.swap()->read_bytes(store.region(state), part.first_byte, stored);
              read_row_bytes(TensorView{stored.data(), &part.type}, 0, rows);
              body(rows);
            });
}

void fill_state(runtime::StateStore& store, Name state,
                const std::function<void(std::int64_t first, std::span<std::byte>)>& source) {
  const StateRows state_rows = find_rows(store, state);
  if (store.tier(state) == runtime::Tier::kMemory) {
    const TensorType rows_type =
        tensor_type(state_rows.dtype(), {state_rows.state.type->num_elements()});
    return for_parts(rows_type, false,
                     [&](const Part& part, std::span<std::byte>, std::span<std::byte> rows) {
                       source(part.first_element, rows);
                       write_row_bytes(state_rows, part.first_element, rows);
                     });
  }
  for_parts(*state_rows.state.type, true,
            [&](const Part& part, std::span<std::byte> stored, std::span<std::byte> rows) {
              source(part.first_element, rows);
              std::fill(stored.begin(), stored.end(), std::byte{0});  // beyond the sides of panels
              write_row_bytes(TensorView{stored.data(), &part.type}, 0, rows);
              store.swap()->write_bytes(store.region(state), part.first_byte, stored);
            });
}

void for_state_bytes(runtime::StateStore& store, const SavedState& state,
                     const std::function<void(std::span<const std::byte>)>& body) {
  if (state.slices.empty()) return for_state_bytes(store, state.name, body);
  for (const Name slice : state.slices) for_state_bytes(store, slice, body);
}

void fill_state(runtime::StateStore& store, const SavedState& state,
                const std::function<void(std::int64_t first, std::span<std::byte>)>& source) {
  if (state.slices.empty()) return fill_state(store, state.name, source);
  std::int64_t begin = 0;
  for (const Name slice : state.slices) {
    fill_state(store, slice, [&](std::int64_t first, std::span<std::byte> block) {
      source(begin + first, block);
    });
    begin += store.find(slice).type->num_elements();
  }
}

}  // namespace anabatic::train
