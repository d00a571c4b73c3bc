// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sparse/sparse_rows.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/rounding.h"
#include "kernels/cpu/call.h"
#include "kernels/cpu/linear_products.h"
#include "kernels/cpu/sparse/blocks.h"
#include "kernels/cpu/sparse/sparse_call.h"

namespace anabatic::kernels::cpu {
namespace {

using Int = std::int64_t;
using spec::SparseLayout;

bool is_weight_gradient(const spec::Problem& problem) {
  return text(problem.op).ends_with("weight_gradient");
}

// The dense product that bits follow.
Int sum_terms(const GemmEngine& engine, DType dtype, bool of_gradient) {
  Gemm gemm;
  gemm.a.dtype = gemm.b.dtype = dtype;
  if (of_gradient) gemm.a.column_stride = 2;  // whatever is not 1
  return engine.sum_terms(gemm);
}

BlockProduct product_shape(const SparseLayout& layout, Int rows, DType dtype, Int sum_terms) {
  return {.side = layout.side,
          .is_two_of_four = layout.is_two_of_four,
          .rows = rows,
          .lines = layout.lines,
          .depth = layout.depth,
          .dtype = dtype,
          .sum_terms = sum_terms};
}

BlockGradient gradient_shape(const SparseLayout& layout, DType dtype, Int sum_terms) {
  return {.side = layout.side,
          .out = layout.lines,
          .in = layout.depth,
          .dtype = dtype,
          .sum_terms = sum_terms};
}

// Places 0 and 1, of lines and groups that are not there.
constexpr std::uint8_t kNoPlaces = 0x44;

// 4-byte units of a column of the panels of x, over all groups.
Int panel_units(const BlockEngine& engine, Int rows, Int num_groups) {
  return engine.units(rows) + num_groups;
}

void run_product(const GemmEngine& gemm_engine, const Arguments& args) {
  const BlockEngine& engine = *gemm_engine.blocks;
  const TensorView &x = args.inputs[0], &values = args.inputs[1], &y = args.outputs[0];
  const SparseGroups groups(args, columns(y), columns(x));
  const SparseLayout& layout = groups.layout;
  const DType dtype = x.type->dtype;
  const Int size = size_bytes(dtype);
  const bool has_bias = groups.offsets == nullptr && args.inputs.size() > kSparseOffsetsOrBias;
  BlockProduct shape =
      product_shape(layout, groups.rows, dtype, sum_terms(gemm_engine, dtype, false));
  if (has_bias) shape.bias = args.inputs[kSparseOffsetsOrBias].as<const float>();
  const Int part = engine.workspace_bytes(shape), row_step = engine.row_step(layout.side);
  // Panels are shared out too where there are few blocks of rows.
  Int row_blocks = 0;
  for (Int group = 0; group < groups.count; ++group)
    row_blocks += ceil_div(groups.num_rows(group), engine.most_rows);
  const int num_threads = args.launch.team->num_threads();
  constexpr Int kTasksPerThread = 8, kLeastPanels = 2;
  const Int most_parts = std::max<Int>(1, layout.panels() / kLeastPanels);
  const Int parts =
      num_threads == 1
          ? 1
          : std::clamp<Int>(ceil_div(kTasksPerThread * num_threads, std::max<Int>(row_blocks, 1)),
                            1, most_parts);
  args.launch.team->for_tasks(row_blocks * parts, [&](Int task, int thread) {
    const Int panels = ceil_div(layout.panels(), parts), panel = task % parts * panels;
    if (panel >= layout.panels()) return;
    Int block = task / parts, group = 0;
    for (;; ++group) {
      const Int blocks = ceil_div(groups.num_rows(group), engine.most_rows);
      if (block < blocks) break;
      block -= blocks;
    }
    BlockProduct product = shape;
    product.rows = groups.num_rows(group);
    product.later_rows = groups.rows - groups.begin(group) - product.rows;
    const Int all = product.rows,
              height = round_up(ceil_div(all, ceil_div(all, engine.most_rows)), row_step);
    const Int begin = block * height;
    if (begin >= all) return;
    product.a = x.data + groups.begin(group) * layout.depth * size;
    product.c = y.data + groups.begin(group) * layout.lines * size;
    product.values = values.data + group * layout.kept * layout.block_size() * size;
    if (layout.is_two_of_four) {
      product.places = groups.places(group);
    } else {
      product.offsets = groups.offsets_of_panels(group);
      product.steps = groups.steps(group);
    }
    engine.multiply(product, begin, std::min(all, begin + height), panel,
                    std::min(layout.panels(), panel + panels), args.workspace + thread * part);
  });
}

void run_weight_gradient(const GemmEngine& gemm_engine, const Arguments& args) {
  const BlockEngine& engine = *gemm_engine.blocks;
  const TensorView &x = args.inputs[0], &dy = args.inputs[1], &dw = args.outputs[0];
  const SparseGroups groups(args, columns(dy), columns(x));
  const SparseLayout& layout = groups.layout;
  const DType dtype = x.type->dtype;
  const Int size = size_bytes(dtype);
  const BlockGradient shape = [&] {
    BlockGradient result = gradient_shape(layout, dtype, sum_terms(gemm_engine, dtype, true));
    result.accumulate = adds(args, 0);
    result.leaves_absent = spec::get_bool_or(*args.attributes, "present_only", false);
    result.streams = args.prepared != nullptr;
    return result;
  }();
  const Int x_columns = round_up(layout.depth, layout.side);
  std::byte* thread_panels =
      args.workspace + panel_units(engine, groups.rows, groups.count) * x_columns * 4;
  const Int thread_bytes = engine.units(groups.rows) * layout.side * 4;
  const auto gradient_of = [&](Int group) {
    BlockGradient gradient = shape;
    gradient.rows = groups.num_rows(group);
    gradient.x = x.data + groups.begin(group) * layout.depth * size;
    gradient.dy = dy.data + groups.begin(group) * layout.lines * size;
    gradient.offsets = groups.offsets_of_panels(group);
    gradient.steps = groups.steps(group);
    gradient.dw = dw.as<float>() + group * layout.lines * layout.depth;
    // Rows before it, and at most one unit more for each group before it.
    const Int before = groups.begin(group) / engine.unit_depth + group;
    gradient.x_panels = args.workspace + before * x_columns * 4;
    return gradient;
  };
  constexpr Int kUnits = 32;  // of a task
  Int most_units = 0;
  for (Int group = 0; group < groups.count; ++group)
    most_units = std::max(most_units, engine.units(groups.num_rows(group)));
  const Int parts = ceil_div(most_units, kUnits);
  args.launch.team->for_tasks(groups.count * parts, [&](Int task, int) {
    const BlockGradient gradient = gradient_of(task / parts);
    const Int begin = task % parts * kUnits, units = engine.units(gradient.rows);
    if (begin < units) engine.pack(gradient, begin, std::min(units, begin + kUnits));
  });
  // Panels in a row: each fetches what the next one reads.
  constexpr Int kTasksPerThread = 8, kMostPanels = 6;
  const Int panels = std::clamp<Int>(
      groups.count * layout.panels() / (kTasksPerThread * args.launch.team->num_threads()), 1,
      kMostPanels);
  const Int tasks = ceil_div(layout.panels(), panels);
  args.launch.team->for_tasks(groups.count * tasks, [&](Int task, int thread) {
    const Int panel = task % tasks * panels;
    engine.gradient(gradient_of(task / tasks), panel, std::min(layout.panels(), panel + panels),
                    thread_panels + thread * thread_bytes);
  });
}

}  // namespace

template <Engine E>
Support SparseRows<E>::supports(const spec::Problem& problem) {
  const GemmEngine* engine = engine_of(E);
  if (engine == nullptr) return no("not in this build");
  if (!usable(engine, *problem.device)) return no(fmt::format("the device has no {}", engine->isa));
  const auto side = sparse_layout_of(problem).side;
  if (side < 16) return no("expected blocks");
  const DType dtype = problem.inputs[0].dtype;
  if (problem.inputs[1].dtype != dtype)
    return no(fmt::format("expected operands of one dtype, got {} and {}", to_string(dtype),
                          to_string(problem.inputs[1].dtype)));
  if (takes_bf16_alone(E) && dtype != DType::kBFloat16)
    return no(fmt::format("expected bf16, got {}", to_string(dtype)));
  if (dtype != DType::kFloat32 && dtype != DType::kBFloat16)
    return no(fmt::format("expected f32 or bf16, got {}", to_string(dtype)));
  return yes();
}

template <Engine E>
std::int64_t SparseRows<E>::workspace_bytes(const spec::Problem& problem) {
  const GemmEngine& gemm_engine = *engine_of(E);
  const BlockEngine& engine = *gemm_engine.blocks;
  const SparseLayout layout = sparse_layout_of(problem);
  const Int rows = problem.inputs[0].dim(0);
  if (!is_weight_gradient(problem))
    return problem.device->num_threads *
           engine.workspace_bytes(product_shape(layout, rows, problem.inputs[0].dtype, 0));
  const TensorType& index = problem.inputs[kSparseIndexInput];
  return panel_units(engine, rows, index.ndim() == 2 ? index.dim(0) : 1) * 4 *
             round_up(layout.depth, layout.side) +
         problem.device->num_threads * engine.units(rows) * layout.side * 4;
}

template <Engine E>
void SparseRows<E>::forward(const Arguments& arguments) {
  run_product(*engine_of(E), arguments);
}
template <Engine E>
void SparseRows<E>::weight_gradient(const Arguments& arguments) {
  run_weight_gradient(*engine_of(E), arguments);
}

template struct SparseRows<Engine::kAvx512Bf16>;
template struct SparseRows<Engine::kAvx512>;
template struct SparseRows<Engine::kAvx2>;
template struct SparseRows<Engine::kPortable>;

namespace {

// The places of 2:4, from the mask of single weights.
void index_fours(const Arguments& args, const SparseLayout& layout, bool transposed) {
  const auto* mask = args.inputs[0].as<const std::uint8_t>();
  const Int line_stride = transposed ? 1 : layout.depth,
            depth_stride = transposed ? layout.lines : 1, matrix = layout.lines * layout.depth;
  const Int groups = matrix > 0 ? size(args.inputs[0]) / matrix : 0;
  auto* places = args.outputs[0].as<std::uint8_t>();
  std::fill_n(places, size(args.outputs[0]), kNoPlaces);
  for (Int group = 0; group < groups; ++group, mask += matrix, places += layout.index_size())
    for (Int line = 0; line < layout.lines; ++line)
      for (Int four = 0; four < layout.depth / 4; ++four) {
        const std::uint8_t* const from = mask + line * line_stride + 4 * four * depth_stride;
        unsigned bits = 0, count = 0;
        for (unsigned n = 0; n < 4; ++n)
          if (from[n * depth_stride] != 0 && count++ < 2) bits |= n << (count == 1 ? 0 : 2);
        ANABATIC_REQUIRE(count == 2,
                         "[sparse_index] expected two present weights of each four, got {} in "
                         "matrix {}, {} {}",
                         count, group, transposed ? "column" : "row", line);
        std::uint8_t& byte = places[spec::place_byte(layout, line, four)];
        const int bit = spec::place_bit(four);
        byte = static_cast<std::uint8_t>((byte & ~(15u << bit)) | bits << bit);
      }
}

}  // namespace

// Once a change of the mask, so on one thread.
void sparse_index(const Arguments& args) {
  const auto* mask = args.inputs[0].as<const std::uint8_t>();
  const auto pattern =
      spec::sparsity_pattern_from_string(spec::get_string(*args.attributes, "pattern"));
  const bool transposed = spec::get_bool(*args.attributes, "transposed");
  const SparseLayout layout = spec::sparse_layout(
      *pattern, spec::get_int(*args.attributes, "rows"), spec::get_int(*args.attributes, "columns"),
      spec::get_int(*args.attributes, "kept"), transposed);
  if (layout.is_two_of_four) return index_fours(args, layout, transposed);
  const Int matrix = layout.panels() * layout.steps();
  const Int line = transposed ? 1 : layout.steps(), step = transposed ? layout.panels() : 1;
  const Int groups = matrix > 0 ? size(args.inputs[0]) / matrix : 0;
  for (Int group = 0; group < groups; ++group, mask += matrix) {
    auto* offsets = args.outputs[0].as<std::int32_t>() + group * layout.index_size();
    std::int32_t* steps = offsets + layout.panels() + 1;
    Int count = 0;
    for (Int panel = 0; panel < layout.panels(); ++panel) {
      offsets[panel] = static_cast<std::int32_t>(count);
      for (Int k = 0; k < layout.steps(); ++k) {
        if (mask[panel * line + k * step] == 0) continue;
        if (count < layout.kept) steps[count] = static_cast<std::int32_t>(k);
        ++count;
      }
    }
    offsets[layout.panels()] = static_cast<std::int32_t>(count);
    ANABATIC_REQUIRE(count == layout.kept,
                     "[sparse_index] expected {} present blocks in matrix {} of the mask, got {}",
                     layout.kept, group, count);
  }
}

}  // namespace anabatic::kernels::cpu
