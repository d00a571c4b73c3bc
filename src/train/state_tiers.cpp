// SPDX-License-Identifier: Apache-2.0
#include "train/state_tiers.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "runtime/peer_states.h"
#include "runtime/swap/swap_space.h"
#include "tensor/panels.h"
#include "train/state_rows.h"

namespace anabatic::train {
namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

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

// Parts of about `most_bytes`, unless that is less than a row of panels.
std::vector<Part> parts_of(const TensorType& type, std::int64_t most_bytes = kBlockBytes) {
  std::vector<Part> parts;
  const std::int64_t count = type.num_elements(), size = size_bytes(type.dtype);
  if (count == 0) return parts;
  if (!is_panels(type.layout)) {
    for (std::int64_t first = 0; first < count; first += most_bytes / size)
      parts.push_back({tensor_type(type.dtype, {std::min(most_bytes / size, count - first)}), first,
                       first * size});
    return parts;
  }
  const PanelShape shape = panel_shape(type);
  const std::int64_t num_matrices = count / (type.dim(-2) * type.dim(-1));
  const std::int64_t matrix_bytes = shape.num_elements() * size;
  if (2 * matrix_bytes <= most_bytes) {  // several small matrices a part
    const std::int64_t group = most_bytes / matrix_bytes, elements = type.dim(-2) * type.dim(-1);
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
          : std::max(most_bytes / (shape.panel_elements() * size), std::int64_t{1});
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

// Stored bytes of a state that is not in memory.
void read_stored(runtime::StateStore& store, Name state, std::int64_t first_byte,
                 std::span<std::byte> bytes) {
  if (store.tier(state) == runtime::Tier::kDisk)
    return store.swap()->read_bytes(store.region(state), first_byte, bytes);
  ANABATIC_CHECK(store.peers() != nullptr, "[state rows] {} is on another rank", text(state));
  store.peers()->read_bytes(state, first_byte, bytes);
}

// The parameter, or the parts of it that ranks hold, ascending by rows.
std::vector<Name> parts_of_ranks(const runtime::StateStore& store, Name parameter) {
  if (!is_shared(store, parameter)) return {parameter};
  const std::span<const Name> parts = store.parts(store.part(parameter).role, parameter);
  return {parts.begin(), parts.end()};
}

}  // namespace

std::set<std::string, std::less<>> names_on_disk(const runtime::StateStore& store) {
  std::set<std::string, std::less<>> names;
  for (const Name name : store.names())
    if (store.tier(name) == runtime::Tier::kDisk) names.emplace(text(name));
  return names;
}

DType row_dtype(const runtime::StateStore& store, Name state) {
  return low_states(store, state).empty() ? store.find(state).type->dtype : DType::kFloat32;
}

std::int64_t num_elements(const runtime::StateStore& store, Name parameter) {
  std::int64_t elements = 0;
  for (const Name part : parts_of_ranks(store, parameter))
    elements += store.find(part).type->num_elements();
  return elements;
}

std::vector<StateCursor::Part> StateCursor::parts_of_parameter(Name state) const {
  std::vector<Part> parts;
  const std::vector<Name> uppers = parts_of_ranks(store_, state);
  std::size_t upper = 0;
  std::int64_t first_element = 0, first_byte = 0;  // of the parameter, and in its part `upper`
  const auto add = [&](const TensorType& type, std::optional<Name> low) {
    const TensorType& of_upper = *store_.find(uppers[upper]).type;
    for (const train::Part& part : parts_of(type, runtime::swap::kBlockBytes)) {
      TensorType own = part.type;
      own.dtype = of_upper.dtype;
      parts.push_back({std::move(own), first_element + part.first_element, uppers[upper],
                       first_byte + part.first_byte, low, part.first_byte});
    }
    first_element += type.num_elements();
    first_byte += type.num_bytes();
    if (first_byte < of_upper.num_bytes()) return;
    ++upper;
    first_byte = 0;
  };
  // Slices of the lower 16 bits follow one another in the order of the upper ones.
  const std::span<const Name> lows = low_states(store_, state);
  for (const Name low : lows) add(*store_.find(low).type, low);
  if (lows.empty())
    for (const Name name : uppers) add(*store_.find(name).type, std::nullopt);
  return parts;
}

StateCursor::Open* StateCursor::open(Name state) {
  Open* oldest = &open_.front();
  for (Open& open : open_) {
    if (open.used > 0 && open.state == state) {
      open.used = ++calls_;
      return &open;
    }
    if (open.used < oldest->used) oldest = &open;
  }
  if (is_in_memory_whole(store_, state)) return nullptr;
  put_back(*oldest);
  oldest->state = state;
  oldest->parts = parts_of_parameter(state);
  oldest->at = oldest->parts.size();
  oldest->used = ++calls_;
  return oldest;
}

std::byte* StateCursor::at_hand(Name state, std::int64_t first_byte, std::int64_t num_bytes,
                                std::vector<std::byte>& bytes) {
  if (store_.tier(state) == runtime::Tier::kMemory) {
    bytes.clear();
    return store_.find(state).data + first_byte;
  }
  bytes.resize(static_cast<std::size_t>(num_bytes));
  read_stored(store_, state, first_byte, bytes);
  return bytes.data();
}

bool StateCursor::is_out_of_reach(Name state) const {
  return store_.tier(state) == runtime::Tier::kPeer && store_.peers() == nullptr;
}

void StateCursor::load(Open& open, std::size_t part) {
  if (open.at == part) return;
  put_back(open);
  open.at = part;
  const Part& from = open.parts[part];
  open.upper = open.low = nullptr;
  if (is_out_of_reach(from.upper)) return;
  open.upper = at_hand(from.upper, from.first_byte, from.type.num_bytes(), open.upper_bytes);
  if (!from.low || is_out_of_reach(*from.low)) return;
  TensorType low = from.type;
  low.dtype = DType::kUInt16;
  open.low = at_hand(*from.low, from.low_byte, low.num_bytes(), open.low_bytes);
}

void StateCursor::put_back(Open& open) {
  if (!open.is_changed) return;
  const Part& part = open.parts[open.at];
  const auto write = [&](Name state, std::int64_t first, const std::vector<std::byte>& bytes) {
    if (!bytes.empty() && store_.tier(state) == runtime::Tier::kDisk)
      store_.swap()->write_bytes(store_.region(state), first, bytes);
  };
  write(part.upper, part.first_byte, open.upper_bytes);
  if (part.low) write(*part.low, part.low_byte, open.low_bytes);
  open.is_changed = false;
}

void StateCursor::flush() {
  for (Open& open : open_) put_back(open);
  quantized_.require_complete();
}

// Calls body(rows of a part, first element in it, what of `values` lies there).
template <class Element, class Body>
void StateCursor::for_parts(Open& open, std::int64_t first, std::span<Element> values,
                            Body&& body) {
  while (!values.empty()) {
    const auto after =
        std::upper_bound(open.parts.begin(), open.parts.end(), first,
                         [](std::int64_t at, const Part& part) { return at < part.first_element; });
    load(open, static_cast<std::size_t>(after - open.parts.begin()) - 1);
    const Part& part = open.parts[open.at];
    const std::int64_t in_part = first - part.first_element,
                       count = std::min(part.type.num_elements() - in_part,
                                        static_cast<std::int64_t>(values.size()));
    ANABATIC_CHECK(count > 0, "[state rows] element {} of {}", first, text(open.state));
    const std::span own = values.first(static_cast<std::size_t>(count));
    TensorType low = part.type;
    low.dtype = DType::kUInt16;
    const TensorView upper{open.upper, &part.type};
    body(open.low ? StateRows(upper, TensorView{open.low, &low}) : StateRows(upper), in_part, own);
    values = values.subspan(static_cast<std::size_t>(count));
    first += count;
  }
}

void StateCursor::read(Name state, std::int64_t first, std::span<float> values) {
  Open* const parameter = open(state);
  if (parameter == nullptr) return read_rows(find_rows(store_, state), first, values);
  for_parts(*parameter, first, values,
            [&](const StateRows& rows, std::int64_t at, std::span<float> part) {
              ANABATIC_CHECK(rows.state.data != nullptr &&
                                 (rows.is_split() || !parameter->parts[parameter->at].low),
                             "[state rows] a part of {} is on another rank", text(state));
              read_rows(rows, at, part);
            });
}

template <class Body>
void StateCursor::for_own_parts(Name state, std::int64_t first, std::int64_t count, Body&& body) {
  std::int64_t part_begin = 0;
  for (const Name name : parts_of_ranks(store_, state)) {
    const std::int64_t part_end = part_begin + store_.find(name).type->num_elements();
    const std::int64_t begin = std::max(first, part_begin), end = std::min(first + count, part_end);
    if (begin < end && store_.tier(name) != runtime::Tier::kPeer) {
      ANABATIC_CHECK(store_.tier(name) == runtime::Tier::kMemory,
                     "[state rows] {} is not in memory", text(name));
      body(store_.find(name), begin - part_begin, begin - first, end - begin);
    }
    part_begin = part_end;
  }
}

void StateCursor::write(Name state, std::int64_t first, std::span<const float> values) {
  if (store_.find(state).type->is_quantized())
    return for_own_parts(
        state, first, static_cast<std::int64_t>(values.size()),
        [&](const TensorView& part, std::int64_t at, std::int64_t begin, std::int64_t count) {
          quantized_.write(
              part, at,
              values.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)));
        });
  Open* const parameter = open(state);
  if (parameter == nullptr) return write_rows(find_rows(store_, state), first, values);
  for_parts(*parameter, first, values,
            [&](const StateRows& rows, std::int64_t at, std::span<const float> part) {
              if (rows.state.data == nullptr) return;
              const bool has_low = parameter->parts[parameter->at].low.has_value();
              has_low && !rows.is_split() ? write_upper_rows(rows.state, at, part)
                                          : write_rows(rows, at, part);
              parameter->is_changed = true;
            });
}

bool StateCursor::write_mxfp4(Name state, std::int64_t first, std::span<const std::byte> pairs,
                              std::span<const std::byte> scales) {
  if (!is_mxfp4(*store_.find(state).type)) return false;
  // Parts are whole rows, and those are whole blocks.
  constexpr auto kBlock = static_cast<std::size_t>(mxfp4_format().columns);
  for_own_parts(
      state, first, static_cast<std::int64_t>(2 * pairs.size()),
      [&](const TensorView& part, std::int64_t at, std::int64_t begin, std::int64_t count) {
        const auto from = static_cast<std::size_t>(begin), size = static_cast<std::size_t>(count);
        copy_mxfp4(part, at, pairs.subspan(from / 2, size / 2),
                   scales.subspan(from / kBlock, size / kBlock));
      });
  return true;
}

void for_state_bytes(runtime::StateStore& store, Name state,
                     const std::function<void(std::span<const std::byte>)>& body) {
  if (is_in_memory_whole(store, state)) return for_row_bytes(find_rows(store, state), body);
  if (!low_states(store, state).empty()) {
    StateCursor cursor(store);
    return for_row_blocks(num_elements(store, state),
                          [&](std::int64_t first, std::span<float> block) {
                            cursor.read(state, first, block);
                            body(std::as_bytes(block));
                          });
  }
  const TensorView view = store.find(state);
  for_parts(*view.type, true,
            [&](const Part& part, std::span<std::byte> stored, std::span<std::byte> rows) {
              read_stored(store, state, part.first_byte, stored);
              read_row_bytes(TensorView{stored.data(), &part.type}, 0, rows);
              body(rows);
            });
}

void fill_state(runtime::StateStore& store, Name state,
                const std::function<void(std::int64_t first, std::span<std::byte>)>& source) {
  const bool is_parameter_in_parts = !low_states(store, state).empty() || is_shared(store, state);
  if (is_parameter_in_parts && !is_in_memory_whole(store, state)) {
    StateCursor cursor(store);
    std::int64_t begin = 0;
    for (const Name part : parts_of_ranks(store, state)) {
      const std::int64_t count = store.find(part).type->num_elements();
      if (store.tier(part) != runtime::Tier::kPeer)
        for_row_blocks(count, [&](std::int64_t first, std::span<float> block) {
          source(begin + first, std::as_writable_bytes(block));
          cursor.write(state, begin + first, block);
        });
      begin += count;
    }
    return cursor.flush();
  }
  const TensorType& type = *store.find(state).type;
  if (is_in_memory_whole(store, state)) {
    const StateRows state_rows = find_rows(store, state);
    const TensorType rows_type =
        tensor_type(state_rows.dtype(), {state_rows.state.type->num_elements()});
    return for_parts(rows_type, false,
                     [&](const Part& part, std::span<std::byte>, std::span<std::byte> rows) {
                       source(part.first_element, rows);
                       write_row_bytes(state_rows, part.first_element, rows);
                     });
  }
  for_parts(type, true,
            [&](const Part& part, std::span<std::byte> stored, std::span<std::byte> rows) {
              source(part.first_element, rows);
              std::fill(stored.begin(), stored.end(), std::byte{0});  // beyond the sides of panels
              write_row_bytes(TensorView{stored.data(), &part.type}, 0, rows);
              store.swap()->write_bytes(store.region(state), part.first_byte, stored);
            });
}

namespace {

void read_scales(runtime::StateStore& store, Name state,
                 const std::function<void(std::span<const std::byte>)>& body) {
  const TensorView view = store.find(state);
  const std::int64_t offset = scales_offset(*view.type);
  const bool is_in_memory = store.tier(state) == runtime::Tier::kMemory;
  for_parts(scales_type(*view.type), false,
            [&](const Part& part, std::span<std::byte>, std::span<std::byte> bytes) {
              const std::int64_t first = offset + part.first_byte;
              if (is_in_memory) return body({view.data + first, bytes.size()});
              store.swap()->read_bytes(store.region(state), first, bytes);
              body(bytes);
            });
}

void write_scales(runtime::StateStore& store, Name state,
                  const std::function<void(std::int64_t first, std::span<std::byte>)>& source) {
  const TensorView view = store.find(state);
  const std::int64_t offset = scales_offset(*view.type);
  const bool is_in_memory = store.tier(state) == runtime::Tier::kMemory;
  for_parts(scales_type(*view.type), false,
            [&](const Part& part, std::span<std::byte>, std::span<std::byte> bytes) {
              const std::int64_t first = offset + part.first_byte;
              if (is_in_memory)
                return source(part.first_element, {view.data + first, bytes.size()});
              source(part.first_element, bytes);
              store.swap()->write_bytes(store.region(state), first, bytes);
            });
}

}  // namespace

void for_state_bytes(runtime::StateStore& store, const SavedState& state, const spec::Rows& rows,
                     const std::function<void(std::span<const std::byte>)>& body) {
  if (state.scales_of) return read_scales(store, *state.scales_of, body);
  for (const Name slice : state.slices) {
    const spec::Rows part = store.part(slice).rows;
    if (rows.total == 0 || (part.first >= rows.first && part.first < rows.first + rows.count))
      for_state_bytes(store, slice, body);
  }
  if (!state.slices.empty()) return;
  if (rows.is_whole()) return for_state_bytes(store, state.name, body);
  const std::int64_t width = state.type.dim(-1);
  StateCursor cursor(store);
  for_row_blocks(rows.count * width, [&](std::int64_t first, std::span<float> block) {
    cursor.read(state.name, rows.first * width + first, block);
    body(std::as_bytes(block));
  });
}

void fill_state(runtime::StateStore& store, const SavedState& state,
                const std::function<void(std::int64_t first, std::span<std::byte>)>& source) {
  if (state.scales_of) return write_scales(store, *state.scales_of, source);
  if (state.slices.empty()) return fill_state(store, state.name, source);
  for (const Name slice : state.slices) {
    const std::int64_t begin = store.part(slice).rows.first * state.type.dim(-1);
    fill_state(store, slice, [&](std::int64_t first, std::span<std::byte> block) {
      source(begin + first, block);
    });
  }
}

}  // namespace anabatic::train
