// SPDX-License-Identifier: Apache-2.0
// Products of the present blocks of sparse weights, and their layout: spec/sparse_layout.h.
#include <array>
#include <vector>

#include "base/error.h"
#include "kernels/ref/access.h"
#include "kernels/ref/rows.h"
#include "spec/sparse_layout.h"

namespace anabatic::kernels::ref {
namespace {

using spec::SparseLayout;

spec::SparsityPattern pattern_of(const Arguments& args) {
  return *spec::sparsity_pattern_from_string(spec::get_string(*args.attributes, "pattern"));
}

SparseLayout layout_of(const Arguments& args, const TensorView& index, std::int64_t lines,
                       std::int64_t depth) {
  return spec::sparse_layout_by_index(pattern_of(args), lines, depth, columns(index));
}

// Calls body(panel, step, block) for the present blocks of matrix `group`, in their order.
template <class Body>
void for_blocks(const TensorView& index, const SparseLayout& layout, std::int64_t group,
                Body&& body) {
  const std::int64_t first = group * layout.index_size(), ids = first + layout.panels() + 1;
  for (std::int64_t panel = 0; panel < layout.panels(); ++panel) {
    const std::int64_t begin = load_index(index, first + panel),
                       end = load_index(index, first + panel + 1);
    ANABATIC_REQUIRE(0 <= begin && begin <= end && end <= layout.kept,
                     "[sparse_linear] expected ascending offsets of panels within {} blocks, got "
                     "[{}, {})",
                     layout.kept, begin, end);
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t step = load_index(index, ids + block);
      ANABATIC_REQUIRE(0 <= step && step < layout.steps(),
                       "[sparse_linear] expected a block in [0, {}), got {}", layout.steps(), step);
      body(panel, step, block);
    }
  }
}

// Calls body(line, k, place in the values of all panels) for the weights of 2:4 in matrix `group`.
template <class Body>
void for_fours(const TensorView& index, const SparseLayout& layout, bool has_16_bits,
               std::int64_t group, Body&& body) {
  for (std::int64_t line = 0; line < layout.lines; ++line)
    for (std::int64_t four = 0; four < layout.depth / 4; ++four) {
      const std::int64_t at = group * layout.index_size() + spec::place_byte(layout, line, four);
      const auto places = index.as<const std::uint8_t>()[at] >> spec::place_bit(four);
      const std::int64_t first = places & 3, second = places >> 2 & 3;
      const bool is_turned = has_16_bits && spec::is_pair_turned(first, second);
      const std::int64_t panel = group * layout.kept + line / layout.side;
      for (const bool is_second : {false, true})
        body(line, 4 * four + (is_second ? second : first),
             panel * layout.block_size() +
                 spec::place_in_panel(has_16_bits, line, four, is_second != is_turned ? 1 : 0));
    }
}

// Rows [begin, end) of the first operand times matrix `group`.
void multiply(const Arguments& args, std::int64_t begin, std::int64_t end, std::int64_t group) {
  const TensorView &x = args.inputs[0], &values = args.inputs[1], &index = args.inputs[2],
                   &y = args.outputs[0];
  const std::int64_t lines = columns(y), depth = columns(x);
  const SparseLayout layout = layout_of(args, index, lines, depth);
  const bool has_16_bits = size_bytes(values.type->dtype) == 2;
  const bool has_bias = values.type->ndim() == 2 && args.inputs.size() > 3;
  thread_local std::vector<double> sums;  // takes nothing from the heap after the first call
  for (std::int64_t t = begin; t < end; ++t) {
    sums.assign(static_cast<std::size_t>(lines), 0.0);
    if (layout.is_two_of_four) {
      for_fours(index, layout, has_16_bits, group,
                [&](std::int64_t n, std::int64_t k, std::int64_t at) {
                  sums[static_cast<std::size_t>(n)] += load(x, t * depth + k) * load(values, at);
                });
    } else
      for_blocks(index, layout, group,
                 [&](std::int64_t panel, std::int64_t step, std::int64_t block) {
                   const std::int64_t n0 = panel * layout.side, k0 = step * layout.side;
                   for (std::int64_t n = n0; n < std::min(lines, n0 + layout.side); ++n)
                     for (std::int64_t k = k0; k < std::min(depth, k0 + layout.side); ++k)
                       sums[static_cast<std::size_t>(n)] +=
                           load(x, t * depth + k) *
                           load(values,
                                (group * layout.kept + block) * layout.block_size() +
                                    spec::place_in_block(layout.side, has_16_bits, n - n0, k - k0));
                 });
    for (std::int64_t n = 0; has_bias && n < lines; ++n)
      sums[static_cast<std::size_t>(n)] += load(args.inputs[3], n);
    store_row(y, t, sums);
  }
}

void outer_products(const Arguments& args, std::int64_t begin, std::int64_t end,
                    std::int64_t group) {
  const TensorView &x = args.inputs[0], &dy = args.inputs[1], &index = args.inputs[2];
  const std::int64_t in = columns(x), out = columns(dy);
  const SparseLayout layout = layout_of(args, index, out, in);
  if (!adds(args, 0) && !spec::get_bool_or(*args.attributes, "present_only", false))
    for (std::int64_t i = 0; i < in * out; ++i) store(args.outputs[0], group * in * out + i, 0);
  for_blocks(index, layout, group, [&](std::int64_t panel, std::int64_t step, std::int64_t) {
    const std::int64_t n0 = panel * layout.side, k0 = step * layout.side;
    for (std::int64_t n = n0; n < std::min(out, n0 + layout.side); ++n)
      for (std::int64_t k = k0; k < std::min(in, k0 + layout.side); ++k) {
        double sum = 0;
        for (std::int64_t t = begin; t < end; ++t)
          sum += load(x, t * in + k) * load(dy, t * out + n);
        put(args, 0, group * in * out + n * in + k, sum);
      }
  });
}

// Calls body(begin, end, expert) for the rows of every expert.
template <class Body>
void for_groups(const Arguments& args, Body&& body) {
  const TensorView& offsets = args.inputs[3];
  const std::int64_t num_rows = rows(args.inputs[0]);
  for (std::int64_t e = 0; e + 1 < rows(offsets); ++e) {
    const std::int64_t begin = load_index(offsets, e), end = load_index(offsets, e + 1);
    ANABATIC_REQUIRE(0 <= begin && begin <= end && end <= num_rows,
                     "[grouped_sparse_linear] expected ascending offsets within {} rows, got "
                     "[{}, {})",
                     num_rows, begin, end);
    body(begin, end, e);
  }
}

void index_fours(const TensorView& mask, const TensorView& index, const SparseLayout& layout,
                 bool transposed) {
  for (std::int64_t i = 0; i < size(index); ++i) index.as<std::uint8_t>()[i] = 0x44;  // 0 and 1
  const std::int64_t matrix = layout.lines * layout.depth;
  for (std::int64_t group = 0; matrix > 0 && group < size(mask) / matrix; ++group)
    for (std::int64_t line = 0; line < layout.lines; ++line)
      for (std::int64_t four = 0; four < layout.depth / 4; ++four) {
        std::array<std::int64_t, 5> places{};
        std::size_t count = 0;
        for (std::int64_t n = 0; n < 4; ++n) {
          const std::int64_t k = 4 * four + n,
                             at = transposed ? k * layout.lines + line : line * layout.depth + k;
          if (load(mask, group * matrix + at) != 0) places[count++] = n;
        }
        ANABATIC_REQUIRE(count == 2,
                         "[sparse_index] expected two present weights of each four, got {} in "
                         "matrix {}, {} {}",
                         count, group, transposed ? "column" : "row", line);
        std::uint8_t& byte = index.as<std::uint8_t>()[group * layout.index_size() +
                                                      spec::place_byte(layout, line, four)];
        const int bit = spec::place_bit(four);
        byte =
            static_cast<std::uint8_t>((byte & ~(15 << bit)) | (places[0] + 4 * places[1]) << bit);
      }
}

}  // namespace

void sparse_linear(const Arguments& args) { multiply(args, 0, rows(args.inputs[0]), 0); }
void sparse_linear_input_gradient(const Arguments& args) { sparse_linear(args); }
void sparse_linear_weight_gradient(const Arguments& args) {
  outer_products(args, 0, rows(args.inputs[0]), 0);
}

void grouped_sparse_linear(const Arguments& args) {
  for_groups(args, [&](std::int64_t begin, std::int64_t end, std::int64_t e) {
    multiply(args, begin, end, e);
  });
}
void grouped_sparse_linear_input_gradient(const Arguments& args) { grouped_sparse_linear(args); }
void grouped_sparse_linear_weight_gradient(const Arguments& args) {
  for_groups(args, [&](std::int64_t begin, std::int64_t end, std::int64_t e) {
    outer_products(args, begin, end, e);
  });
}

void sparse_index(const Arguments& args) {
  const TensorView &mask = args.inputs[0], &index = args.outputs[0];
  const spec::SparsityPattern pattern = pattern_of(args);
  const bool transposed = spec::get_bool(*args.attributes, "transposed");
  const SparseLayout layout = spec::sparse_layout(
      pattern, spec::get_int(*args.attributes, "rows"), spec::get_int(*args.attributes, "columns"),
      spec::get_int(*args.attributes, "kept"), transposed);
  if (layout.is_two_of_four) return index_fours(mask, index, layout, transposed);
  const std::int64_t matrix = layout.panels() * layout.steps();
  const std::int64_t groups = matrix > 0 ? size(mask) / matrix : 0;
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t first = group * layout.index_size(), ids = first + layout.panels() + 1;
    std::int64_t count = 0;
    for (std::int64_t panel = 0; panel < layout.panels(); ++panel) {
      store_index(index, first + panel, count);
      for (std::int64_t step = 0; step < layout.steps(); ++step) {
        const std::int64_t at =
            transposed ? step * layout.panels() + panel : panel * layout.steps() + step;
        if (load(mask, group * matrix + at) == 0) continue;
        if (count < layout.kept) store_index(index, ids + count, step);
        ++count;
      }
    }
    store_index(index, first + layout.panels(), count);
    ANABATIC_REQUIRE(count == layout.kept,
                     "[sparse_index] expected {} present blocks in matrix {} of the mask, got {}",
                     layout.kept, group, count);
  }
}

void pack_sparse(const Arguments& args) {
  const TensorView &x = args.inputs[0], &index = args.inputs[1], &values = args.outputs[0];
  const bool transposed = spec::get_bool(*args.attributes, "transposed");
  const bool has_16_bits = size_bytes(values.type->dtype) == 2;
  const std::int64_t width = columns(x), height = x.type->dim(-2);
  const SparseLayout layout =
      layout_of(args, index, transposed ? width : height, transposed ? height : width);
  const std::int64_t groups = x.type->ndim() == 3 ? rows(x) : 1;
  const auto rounded = [&](double value) -> double {
    return values.type->dtype == DType::kBFloat16
               ? to_float(to_bfloat16_half_away(static_cast<float>(value)))
               : value;
  };
  if (layout.is_two_of_four) {
    for (std::int64_t i = 0; i < size(values); ++i)
      store(values, i, 0);  // lines that are not there
    for (std::int64_t group = 0; group < groups; ++group)
      for_fours(index, layout, has_16_bits, group,
                [&](std::int64_t line, std::int64_t k, std::int64_t at) {
                  const std::int64_t element = transposed ? k * width + line : line * width + k;
                  store(values, at, rounded(load(x, group * width * height + element)));
                });
    return;
  }
  for (std::int64_t group = 0; group < groups; ++group)
    for_blocks(
        index, layout, group, [&](std::int64_t panel, std::int64_t step, std::int64_t block) {
          for (std::int64_t n = 0; n < layout.side; ++n)
            for (std::int64_t k = 0; k < layout.side; ++k) {
              const std::int64_t line = panel * layout.side + n, at = step * layout.side + k;
              const std::int64_t element = transposed ? at * width + line : line * width + at;
              const bool is_inside = line < layout.lines && at < layout.depth;
              store(values,
                    (group * layout.kept + block) * layout.block_size() +
                        spec::place_in_block(layout.side, has_16_bits, n, k),
                    is_inside ? rounded(load(x, group * width * height + element)) : 0);
            }
        });
}

}  // namespace anabatic::kernels::ref
