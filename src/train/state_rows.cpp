// SPDX-License-Identifier: Apache-2.0
#include "train/state_rows.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "passes/slice_optimizer.h"
#include "passes/split_parameters.h"
#include "runtime/state_store.h"
#include "tensor/panels.h"
#include "tensor/split_float.h"

namespace anabatic::train {
namespace {

constexpr std::int64_t kBlockElements = std::int64_t{1} << 18;

void check_range(const TensorView& state, std::int64_t first, std::int64_t count) {
  ANABATIC_CHECK(0 <= first && count >= 0 && first + count <= state.type->num_elements(),
                 "[state rows] elements [{}, {}) of {}", first, first + count,
                 to_string(*state.type));
}

// The depth of a unit is a constant: a division by it for each element takes longer than the copy.
template <std::int64_t kUnitDepth, class Body>
void for_places_in_units(const TensorType& type, std::int64_t first, std::int64_t count,
                         Body&& body) {
  PanelShape shape = panel_shape(type);
  shape.unit_depth = kUnitDepth;
  const bool transposed = type.layout == panels_layout(true);
  const std::int64_t width = type.dim(-1), rows = type.dim(-2);
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t at = first + i, matrix = at / (rows * width), row = at / width % rows;
    const std::int64_t begin = at % width, end = std::min(width, begin + count - i);
    const std::int64_t base = matrix * shape.num_elements();
    if (transposed)
      for (std::int64_t column = begin; column < end; ++column, ++i)
        body(i, base + shape.offset(column, row));
    else
      for (std::int64_t column = begin; column < end; ++column, ++i)
        body(i, base + shape.offset(row, column));
  }
}

// Calls body(i, place) for the elements [first, first + count), i counted from `first`, `place` in
// memory.
template <class Body>
void for_places(const TensorType& type, std::int64_t first, std::int64_t count, Body&& body) {
  panel_unit_depth(type.dtype) == 2 ? for_places_in_units<2>(type, first, count, body)
                                    : for_places_in_units<1>(type, first, count, body);
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

// Calls body(first, high, low) with upper and lower 16 bits of elements [first, first + count), in
// blocks.
template <class Body>
void for_halves(std::int64_t first, std::int64_t count, Body&& body) {
  std::array<std::uint16_t, 2048> high, low;
  for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(high.size())) {
    const auto n = static_cast<std::size_t>(
        std::min<std::int64_t>(static_cast<std::int64_t>(high.size()), count - i));
    body(first + i, std::span(high).first(n), std::span(low).first(n));
  }
}

void read_merged(const StateRows& rows, std::int64_t first, std::byte* to, std::int64_t count) {
  for_halves(first, count, [&](std::int64_t at, auto high, auto low) {
    read_row_bytes(rows.state, at, std::as_writable_bytes(high));
    read_row_bytes(rows.low, at, std::as_writable_bytes(low));
    for (std::size_t i = 0; i < high.size(); ++i, to += sizeof(float)) {
      const float value = merge_float({{high[i]}, low[i]});
      std::memcpy(to, &value, sizeof value);
    }
  });
}

void write_halves(const StateRows& rows, std::int64_t first, const std::byte* from,
                  std::int64_t count) {
  for_halves(first, count, [&](std::int64_t at, auto high, auto low) {
    for (std::size_t i = 0; i < high.size(); ++i, from += sizeof(float)) {
      float value;
      std::memcpy(&value, from, sizeof value);
      const SplitFloat halves = split_float(value);
      high[i] = halves.high.bits;
      low[i] = halves.low;
    }
    write_row_bytes(rows.state, at, std::as_bytes(high));
    write_row_bytes(rows.low, at, std::as_bytes(low));
  });
}

void check_floats(const StateRows& rows) {
  ANABATIC_CHECK(rows.dtype() == DType::kFloat32, "[state rows] expected f32, got {}",
                 to_string(*rows.state.type));
}

}  // namespace

std::span<const Name> low_states(const runtime::StateStore& store, Name parameter) {
  return store.parts(spec::StateRole::kLower, parameter);
}

bool is_shared(const runtime::StateStore& store, Name parameter) {
  const spec::StatePart part = store.part(parameter);
  return part.owner == Name{} && !part.rows.is_whole();
}

namespace {

// With the lower 16 bits, in one piece.
bool is_in_memory(const runtime::StateStore& store, Name state) {
  const std::span<const Name> low = low_states(store, state);
  const auto is_here = [&](Name name) { return store.tier(name) == runtime::Tier::kMemory; };
  return is_here(state) && (low.empty() || (low.size() == 1 && is_here(low[0])));
}

}  // namespace

bool is_in_memory_whole(const runtime::StateStore& store, Name state) {
  return !is_shared(store, state) && is_in_memory(store, state);
}

StateRows find_rows(const runtime::StateStore& store, Name state) {
  ANABATIC_CHECK(is_in_memory(store, state), "[state rows] {} is not in memory whole", text(state));
  const std::span<const Name> low = low_states(store, state);
  return {store.find(state), low.empty() ? TensorView{} : store.find(low[0])};
}

void read_row_bytes(const StateRows& rows, std::int64_t first, std::span<std::byte> bytes) {
  const TensorView& state = rows.state;
  const std::int64_t size = size_bytes(rows.dtype());
  const std::int64_t count = static_cast<std::int64_t>(bytes.size()) / size;
  check_range(state, first, count);
  if (bytes.empty()) return;
  if (rows.is_split()) return read_merged(rows, first, bytes.data(), count);
  if (!is_panels(state.type->layout)) {
    std::memcpy(bytes.data(), state.data + first * size, bytes.size());
    return;
  }
  size == 4   ? gather<std::uint32_t>(state, first, bytes)
  : size == 2 ? gather<std::uint16_t>(state, first, bytes)
              : gather<std::uint8_t>(state, first, bytes);
}

void write_row_bytes(const StateRows& rows, std::int64_t first, std::span<const std::byte> bytes) {
  const TensorView& state = rows.state;
  const std::int64_t size = size_bytes(rows.dtype());
  const std::int64_t count = static_cast<std::int64_t>(bytes.size()) / size;
  check_range(state, first, count);
  if (bytes.empty()) return;
  if (rows.is_split()) return write_halves(rows, first, bytes.data(), count);
  if (!is_panels(state.type->layout)) {
    std::memcpy(state.data + first * size, bytes.data(), bytes.size());
    return;
  }
  size == 4   ? scatter<std::uint32_t>(state, first, bytes)
  : size == 2 ? scatter<std::uint16_t>(state, first, bytes)
              : scatter<std::uint8_t>(state, first, bytes);
}

void read_rows(const StateRows& rows, std::int64_t first, std::span<float> values) {
  if (rows.dtype() == DType::kBFloat16) {
    for_halves(first, static_cast<std::int64_t>(values.size()),
               [&](std::int64_t at, auto halves, auto) {
                 read_row_bytes(rows, at, std::as_writable_bytes(halves));
                 for (std::size_t i = 0; i < halves.size(); ++i)
                   values[static_cast<std::size_t>(at - first) + i] = to_float(BFloat16{halves[i]});
               });
    return;
  }
  check_floats(rows);
  read_row_bytes(rows, first, std::as_writable_bytes(values));
}

void write_rows(const StateRows& rows, std::int64_t first, std::span<const float> values) {
  if (rows.dtype() == DType::kBFloat16) return write_upper_rows(rows.state, first, values);
  check_floats(rows);
  write_row_bytes(rows, first, std::as_bytes(values));
}

void write_upper_rows(const TensorView& upper, std::int64_t first, std::span<const float> values) {
  for_halves(first, std::ssize(values), [&](std::int64_t at, auto high, auto) {
    for (std::size_t i = 0; i < high.size(); ++i)
      high[i] = split_float(values[static_cast<std::size_t>(at - first) + i]).high.bits;
    write_row_bytes(upper, at, std::as_bytes(high));
  });
}

void for_row_blocks(std::int64_t count,
                    const std::function<void(std::int64_t, std::span<float>)>& body) {
  std::vector<float> scratch(static_cast<std::size_t>(std::min(count, kBlockElements)));
  for (std::int64_t first = 0; first < count; first += kBlockElements)
    body(first, std::span(scratch).first(
                    static_cast<std::size_t>(std::min(kBlockElements, count - first))));
}

void for_row_bytes(const StateRows& rows,
                   const std::function<void(std::span<const std::byte>)>& body) {
  const std::int64_t count = rows.state.type->num_elements(), size = size_bytes(rows.dtype());
  if (!rows.is_split() && !is_panels(rows.state.type->layout))
    return body({rows.state.data, static_cast<std::size_t>(count * size)});
  std::vector<std::byte> scratch(static_cast<std::size_t>(std::min(count, kBlockElements) * size));
  for (std::int64_t first = 0; first < count; first += kBlockElements) {
    const std::span<std::byte> block = std::span(scratch).first(
        static_cast<std::size_t>(std::min(kBlockElements, count - first) * size));
    read_row_bytes(rows, first, block);
    body(block);
  }
}

}  // namespace anabatic::train
