// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/rounding.h"
#include "kernels/cpu/grid_rows.h"
#include "kernels/cpu/int8/coding.h"
#include "kernels/cpu/int8/packed_matrix.h"
#include "kernels/cpu/optimizer/block_update.h"
#include "kernels/cpu/pack_panels.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_rows.h"
#include "spec/shards.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

ANABATIC_INLINE Doubles to_doubles(const float* p) {
  FewFloats x;
  std::memcpy(&x, p, sizeof x);
  return __builtin_convertvector(x, Doubles);
}

// Sums of squares in double, lanes apart.
struct SquareSums {
  Doubles sums[2] = {};

  ANABATIC_INLINE void add(Floats values) {
    constexpr int kHalf = kLanes / 2;
    float lanes[kLanes];
    store(lanes, values);
    for (int half = 0; half < 2; ++half) {
      const Doubles value = to_doubles(lanes + half * kHalf);
      sums[half] += value * value;
    }
  }
  double total() const { return sum_lanes(sums[0] + sums[1]); }
};

// The sum over the elements of one block: those from `first` on of the bits of a mask, where there
// are such.
template <class T>
double sum_squares_of(const T* x, std::int64_t count, const std::uint8_t* bits,
                      std::int64_t first) {
  SquareSums sums;
  for_lanes(0, count, [&](std::int64_t i, int n) {
    Floats values;
    if (bits == nullptr) {
      values = load(x + i, n);
    } else {
      const Words kept = present(bits, first + i);
      if (!has_bits(kept)) return;  // nothing is read
      values = where(kept, load(x + i, n));
    }
    sums.add(values);
  });
  return sums.total();
}

// The same over what is present of elements [begin, end) of rows of whole vectors: the others would
// add zeroes.
template <class T>
double sum_present_squares(const T* x, const mask_bits::Geometry& at, std::int64_t begin,
                           std::int64_t end) {
  SquareSums sums;
  mask_bits::for_present(at, begin, end, [&](std::int64_t first, std::int64_t last) {
    mask_bits::prefetch_below(at, x, first, last);
    for (std::int64_t i = first; i < last; i += kLanes) sums.add(load(x + i));
  });
  return sums.total();
}

bool has_mask(const Arguments& args) { return spec::mask_of(*args.attributes).has_value(); }

// Elements of a parameter above which its second packing bypasses the caches: nothing reads it
// before the rest of the update has passed through them.
constexpr std::int64_t kStreamedElements = std::int64_t{1} << 18;

// One task updates 16 rows, so many columns at a time that what the packings read is still near.
template <class Update, class To, bool kStreamed>
void sweep(const Arguments& args, const TensorView& packed, const TensorView& transposed) {
  constexpr std::int64_t kColumns = 512;
  const Update update(args, has_mask(args));
  const TensorView& parameter = args.outputs[0];
  const PanelShape shape = panel_shape(*packed.type), turned = panel_shape(*transposed.type);
  const std::int64_t rows = parameter.type->dim(-2), width = columns(parameter);
  const std::int64_t blocks = ceil_div(rows, kPanelColumns);
  const std::int64_t matrices = parameter.type->ndim() == 3 ? parameter.type->dim(0) : 1;
  args.launch.team->for_tasks(matrices * blocks, [&](std::int64_t task) {
    constexpr bool kRounds = sizeof(To) == sizeof(BFloat16);
    alignas(64) BFloat16 copy[kRounds ? kPanelColumns * kColumns : 1];
    const std::int64_t matrix = task / blocks, begin = task % blocks * kPanelColumns;
    const std::int64_t end = std::min(rows, begin + kPanelColumns);
    const std::int64_t first = (matrix * rows + begin) * width;
    const Band band{.first = first, .width = width, .rows = end - begin, .index = task};
    To* panel = packed.as<To>() + matrix * shape.num_elements() +
                begin / kPanelColumns * shape.panel_elements();
    To* panels = transposed.as<To>() + matrix * turned.num_elements();
    for (std::int64_t k = 0; k < width; k += kColumns) {
      const std::int64_t count = std::min(kColumns, width - k);
      update.run(band, k, count, kRounds ? copy : nullptr, kColumns);
      const To* source = nullptr;
      std::int64_t stride = kColumns;
      if constexpr (kRounds) {
        source = copy;
      } else {
        source = parameter.as<const float>() + first + k;
        stride = width;
      }
      pack_panel(panel + k * kPanelColumns, source, stride, end - begin, count);
      pack_depth<kStreamed>(panels + k / kPanelColumns * turned.panel_elements(),
                            turned.panel_elements(), count, source, stride, begin, end);
    }
    if (kStreamed) stream_end();
  });
}

// As sweep, with both packings of int8 products. One task updates whole rows of tiles, as memory
// streams them, and then quantises them: the scale of a tile is known once all of it is new.
// Narrower tasks take up to 1.6 times as long, and are for teams that would wait otherwise.
template <class Update>
void sweep_in_int8(const Arguments& args, const TensorView& packed, const TensorView& transposed) {
  const Update update(args, has_mask(args));
  const TensorView& parameter = args.outputs[0];
  const std::int64_t rows = parameter.type->dim(-2), width = columns(parameter),
                     matrices = parameter.type->ndim() == 3 ? parameter.type->dim(0) : 1,
                     tile_rows = ceil_div(rows, kInt8Tile), bands = ceil_div(rows, kPanelColumns);
  const std::int64_t wanted = ceil_div(2 * args.launch.team->num_threads(), matrices * tile_rows),
                     task_columns = round_up(ceil_div(width, wanted), kInt8Tile),
                     parts = ceil_div(width, task_columns);
  const auto is_aligned = [](const TensorView& view) {
    return reinterpret_cast<std::uintptr_t>(view.data) % 64 == 0;
  };
  const bool streams =
      size(parameter) >= kStreamedElements && is_aligned(packed) && is_aligned(transposed);
  args.launch.team->for_tasks(matrices * tile_rows * parts, [&](std::int64_t task) {
    const std::int64_t matrix = task / (tile_rows * parts), first = matrix * rows * width;
    const std::int64_t row = task / parts % tile_rows * kInt8Tile,
                       column = task % parts * task_columns;
    const std::int64_t end = std::min(rows, row + kInt8Tile),
                       count = std::min(task_columns, width - column);
    for (std::int64_t r = row; r < end; r += kPanelColumns)
      update.run(Band{.first = first + r * width,
                      .width = width,
                      .rows = std::min(kPanelColumns, end - r),
                      .index = matrix * bands + r / kPanelColumns},
                 column, count, nullptr, 0);
    const Int8Source source{.data = parameter.data + first * std::int64_t{sizeof(float)},
                            .dtype = DType::kFloat32,
                            .rows = rows,
                            .columns = width,
                            .stride = width};
    const Int8Lines forward = int8_matrix(packed, matrix), turned = int8_matrix(transposed, matrix);
    for (std::int64_t k = column; k < column + count; k += kInt8Tile)
      int8_coding().tile(source, row, k, streams, &forward, &turned);
    if (streams) stream_end();
  });
}

// Bytes of a state that a call's watch is told of.
struct Part {
  std::int64_t first, bytes;
};

// Calls body(output, part) for each state of an update other than the parameter.
template <class Update, class Body>
ANABATIC_INLINE void for_states(Part low, Part moments, Body&& body) {
  for (std::size_t i = 1; i < Update::kFirstMoment + 2; ++i)
    body(i, i < Update::kFirstMoment ? low : moments);
}

// Runs body, which updates these parts of states, with the call's watch told of them.
template <class Update, class Body>
void run_watched(const Arguments& args, Part low, Part moments, Body&& body) {
  for_states<Update>(low, moments, [&](std::size_t output, Part part) {
    args.watch->before(output, part.first, part.bytes);
  });
  body();
  for_states<Update>(low, moments, [&](std::size_t output, Part part) {
    args.watch->after(output, part.first, part.bytes);
  });
}

// The same for rows [begin, end) of the panel `held` of `depth` rows of those that states hold
// here, which body(sums) sums as they pass, but where the parts do not lie in one block of the
// watch.
template <class Update, class Body>
void run_watched_panel(const Arguments& args, std::int64_t held, std::int64_t depth,
                       std::int64_t begin, std::int64_t end, Body&& body) {
  const auto part_of = [&](bool in_pairs) {
    const std::int64_t row_bytes = kPanelColumns * (in_pairs ? 2 : 4);
    const std::int64_t rows = in_pairs ? round_up(depth, 2) : depth;
    return Part{(held * rows + begin) * row_bytes,
                ((end == depth ? rows : end) - begin) * row_bytes};
  };
  const auto lies_in_block = [](Part part) {
    return part.first / ByteWatch::kBlockBytes ==
           (part.first + part.bytes - 1) / ByteWatch::kBlockBytes;
  };
  const Part wide = part_of(false), half = part_of(true);
  const Part moments = Update::kHalfMoments ? half : wide;
  if (!lies_in_block(wide) || !lies_in_block(half))
    return run_watched<Update>(args, half, moments, [&] { body(nullptr); });
  PanelSums sums{.wide = (held * depth) * kPanelColumns * 4 / kWordBytes,
                 .half = held * round_up(depth, 2) * kPanelColumns * 2 / kWordBytes};
  body(&sums);
  for_states<Update>(half, moments, [&](std::size_t output, Part part) {
    const WordSums* passes =
        output < Update::kFirstMoment ? sums.low : sums.moments[output - Update::kFirstMoment];
    args.watch->summed(output, part.first, part.bytes, passes[0].total(), passes[1].total());
  });
}

// What an update writes packings of: the new parameter, or its values on a grid of groups of
// kGridRows rows, which it has just written.
constexpr std::int64_t kGridRows = 32;
template <class To>
__attribute__((flatten)) void round_rows(const WeightGrid& grid, const float* parameter,
                                         std::int64_t rows, std::int64_t columns, To* to) {
  with_grid_elements(grid.format, [&]<class Encoder>(Encoder) {
    round_groups<Encoder>(parameter, rows, kGridRows, columns, to);
  });
}

// Every state in panels: one task updates a few hundred rows of one panel, a few at a time, which
// the packings read while they are near. `packed` and `transposed` may be null.
template <class Update, class To, bool kStreamed>
void sweep_panels(const Arguments& args, const TensorView* packed, const TensorView* transposed) {
  constexpr std::int64_t kTaskRows = 512, kRows = kGridRows;
  const Update update(args, has_mask(args));
  const TensorType& type = *args.outputs[0].type;
  const std::size_t step = spec::optimizer_step_of(*args.attributes).step();
  const std::optional<WeightGrid> grid =
      grid_at(*args.attributes, args.inputs[step].as<const std::int32_t>());
  const PanelShape shape = panel_shape(DType::kFloat32, type.dim(-2), type.dim(-1), false);
  const PanelShape plain = packed != nullptr ? panel_shape(*packed->type) : shape;
  const PanelShape turned = transposed != nullptr ? panel_shape(*transposed->type) : shape;
  const bool is_packed = packed != nullptr || transposed != nullptr;
  const std::int64_t half_elements = round_up(shape.depth, 2) * kPanelColumns;
  const Stretch stretch =
      stretch_of(type, *args.outputs[Update::kFirstMoment].type, *args.attributes);
  const std::int64_t parts = ceil_div(shape.depth, kTaskRows);
  args.launch.team->for_tasks((stretch.end - stretch.begin) * parts, [&](std::int64_t task) {
    constexpr bool kRounds = sizeof(To) == sizeof(BFloat16);
    alignas(64) To copy[kRows * kPanelColumns];
    const std::int64_t panel = stretch.begin + task / parts, begin = task % parts * kTaskRows;
    const std::int64_t matrix = panel / shape.num_panels();
    const std::int64_t column = panel % shape.num_panels() * kPanelColumns;
    const std::int64_t columns = std::min(kPanelColumns, shape.columns - column);
    const PanelTargets<To> targets{
        .panel = packed != nullptr ? packed->as<To>() + panel * plain.panel_elements() : nullptr,
        .transposed =
            transposed != nullptr ? transposed->as<To>() + matrix * turned.num_elements() : nullptr,
        .panel_elements = turned.panel_elements(),
        .first_column = column,
        .columns = columns};
    const std::int64_t wide = panel * shape.panel_elements(), half = panel * half_elements;
    const Panel place{
        .wide = wide,
        .half = half,
        .moments = Update::kHalfMoments ? half : wide,
        .depth = shape.depth,
        .columns = columns,
        .element = static_cast<std::uint32_t>((matrix * shape.columns + column) * shape.depth),
        .stride = static_cast<std::uint32_t>(shape.depth),
        .index = panel};
    const std::int64_t end = std::min(shape.depth, begin + kTaskRows);
    const auto update_rows = [&](PanelSums* sums) {
      for (std::int64_t k = begin; k < end; k += kRows) {
        const std::int64_t rows = std::min(kRows, end - k);
        BFloat16* to = nullptr;
        if constexpr (kRounds) to = is_packed && !grid ? copy : nullptr;
        if constexpr (!Update::kBlocks) {
          if (sums != nullptr)
            update.run(place, k, k + rows, to, *sums);
          else
            update.run(place, k, k + rows, to);
        } else {
          update.run(place, k, k + rows, to);
        }
        if constexpr (!std::is_same_v<typename Update::Weight, BFloat16>) {
          const float* parameter = args.outputs[0].as<float>() + place.wide + k * kPanelColumns;
          if (grid) round_rows(*grid, parameter, rows, columns, copy);
          if constexpr (!kRounds) {
            targets.template write<kStreamed>(grid ? copy : parameter, k, k + rows);
            continue;
          }
        }
        if constexpr (kRounds) targets.template write<kStreamed>(copy, k, k + rows);
      }
    };
    if (Update::kBlocks || args.watch == nullptr)
      update_rows(nullptr);
    else
      run_watched_panel<Update>(args, panel - stretch.begin, shape.depth, begin, end, update_rows);
    if (kStreamed) stream_end();
  });
}

// With packings; both of them where the parameter lies in rows.
template <class Update, class To>
void run_sweep(const Arguments& args, const TensorView* packed, const TensorView* transposed) {
  const bool streams = size(args.outputs[0]) >= kStreamedElements;
  if (is_panels(args.outputs[0].type->layout))
    streams ? sweep_panels<Update, To, true>(args, packed, transposed)
            : sweep_panels<Update, To, false>(args, packed, transposed);
  else if constexpr (!std::is_same_v<typename Update::Weight, BFloat16>)
    streams ? sweep<Update, To, true>(args, *packed, *transposed)
            : sweep<Update, To, false>(args, *packed, *transposed);
}

// Without packings.
template <class Update>
void run_alone(const Arguments& args) {
  using To = typename Update::Weight;
  if (is_panels(args.outputs[0].type->layout))
    return sweep_panels<Update, To, false>(args, nullptr, nullptr);
  const Update update(args, has_mask(args));
  if constexpr (Update::kBlocks) {
    const std::int64_t rows = args.outputs[0].type->dim(-2), width = columns(args.outputs[0]);
    const std::int64_t bands = ceil_div(rows, kBlockSide);
    args.launch.team->for_tasks(size(args.outputs[0]) / (rows * width) * bands,
                                [&](std::int64_t task) {
                                  const std::int64_t row = task % bands * kBlockSide;
                                  const Band band{.first = (task / bands * rows + row) * width,
                                                  .width = width,
                                                  .rows = std::min(kBlockSide, rows - row),
                                                  .index = task};
                                  update.run(band, 0, width, nullptr, 0);
                                });
  } else {
    const Stretch stretch = stretch_of(*args.outputs[0].type,
                                       *args.outputs[Update::kFirstMoment].type, *args.attributes);
    args.launch.team->for_range(
        stretch.end - stretch.begin, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
          if (args.watch == nullptr) return update.run(stretch.begin + begin, stretch.begin + end);
          constexpr std::int64_t kStep = 1024;  // the nearest cache holds it
          for (std::int64_t i = begin; i < end; i += kStep) {
            const std::int64_t count = std::min(kStep, end - i);
            const auto part = [&](std::int64_t item) { return Part{i * item, count * item}; };
            run_watched<Update>(args, part(2), part(Update::kHalfMoments ? 2 : 4),
                                [&] { update.run(stretch.begin + i, stretch.begin + i + count); });
          }
        });
  }
}

// Without packings, where what is absent is 0 already: a parameter in rows, whose present elements
// alone are updated.
template <class Update>
void run_present(const Arguments& args, const spec::OptimizerStep& form) {
  const TensorType& type = *args.outputs[0].type;
  const mask_bits::Geometry at =
      mask_bits::geometry_of(args, args.inputs[form.place_of_mask()], type);
  const Update update(args, false);
  const Stretch stretch =
      stretch_of(type, *args.outputs[Update::kFirstMoment].type, *args.attributes);
  args.launch.team->for_range(
      stretch.end - stretch.begin, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
        mask_bits::for_present(at, stretch.begin + begin, stretch.begin + end,
                               [&](std::int64_t first, std::int64_t last) {
                                 update.for_arrays([&](const auto* x) {
                                   mask_bits::prefetch_below(at, x, first, last);
                                 });
                                 update.run_inline(first, last);
                               });
      });
}

// Whether run_present has this call: no packing, and no watch of the bytes that stay. Never with
// moments in 8 bits.
bool updates_present(const Arguments& args, const spec::OptimizerStep& form) {
  if (form.kept == 0 || form.packs != spec::Packs::kNone || args.watch != nullptr) return false;
  const TensorView& mask = args.inputs[form.place_of_mask()];
  return !is_panels(args.outputs[0].type->layout) &&
         !args.outputs[form.new_first_moment()].type->is_quantized() &&
         spec::mask_block(*form.mask) % kBlockSide == 0 && columns(mask) <= mask_bits::kMostBlocks;
}

// With packings where the form has them.
template <class Update>
void run_form(const Arguments& args, const spec::OptimizerStep& form) {
  if constexpr (!Update::kBlocks)
    if (updates_present(args, form)) return run_present<Update>(args, form);
  if (form.packs == spec::Packs::kNone) return run_alone<Update>(args);
  const TensorView* last = &args.outputs[form.first_packing() + form.num_packings() - 1];
  const TensorView* packed = form.packs == spec::Packs::kBoth ? last - 1 : nullptr;
  if constexpr (std::is_same_v<typename Update::Weight, BFloat16>)
    run_sweep<Update, BFloat16>(args, packed, last);
  else if (is_int8_panels(*last->type))
    sweep_in_int8<Update>(args, *packed, *last);
  else
    with_float_type(last->type->dtype,
                    [&]<class To>(To*) { run_sweep<Update, To>(args, packed, last); });
}

// As the moments are kept.
template <class Rule, bool kSplit>
void run_rule(const Arguments& args, const spec::OptimizerStep& form) {
  const TensorType& moments = *args.outputs[form.new_first_moment()].type;
  if (moments.is_quantized())
    run_form<BlockUpdate<Rule, kSplit>>(args, form);
  else if (moments.dtype == DType::kBFloat16)
    run_form<Update<Rule, kSplit, true>>(args, form);
  else
    run_form<Update<Rule, kSplit, false>>(args, form);
}

// The sum of body(x, begin, end) over `count` elements, a block at a time. `workspace`: a double of
// each block.
template <class Body>
double sum_blocks(const Arguments& args, const TensorView& gradient, std::int64_t count,
                  std::byte* workspace, Body&& body) {
  const std::int64_t num_blocks = ceil_div(count, kElementBlock);
  auto* partials = reinterpret_cast<double*>(workspace);
  with_float_type(gradient.type->dtype, [&]<class T>(T*) {
    const T* x = gradient.as<const T>();
    args.launch.team->for_range(num_blocks, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t block = first; block < last; ++block)
        partials[block] =
            body(x, block * kElementBlock, std::min(count, (block + 1) * kElementBlock));
    });
  });
  double sum = 0;
  for (std::int64_t block = 0; block < num_blocks; ++block) sum += partials[block];
  return sum;
}

// That over stored elements [begin, end), of those in the bits where there are such.
double sum_squares_of(const Arguments& args, const TensorView& gradient, std::int64_t begin,
                      std::int64_t end, const std::uint8_t* bits, std::byte* workspace) {
  return sum_blocks(args, gradient, end - begin, workspace,
                    [&](const auto* x, std::int64_t first, std::int64_t last) {
                      return sum_squares_of(x + (begin + first), last - first, bits, begin + first);
                    });
}

}  // namespace

void sum_squares(const Arguments& args) {
  const TensorView& x = args.inputs[0];
  const std::int64_t count = stored_elements(*x.type);
  if (args.inputs.size() == 1) {
    *args.outputs[0].as<double>() = sum_squares_of(args, x, 0, count, nullptr, args.workspace);
    return;
  }
  const mask_bits::Geometry at = mask_bits::geometry_of(args, args.inputs[1], *x.type);
  if (!is_panels(x.type->layout) && at.block % kLanes == 0 && at.columns % kLanes == 0 &&
      at.mask_columns <= mask_bits::kMostBlocks) {
    *args.outputs[0].as<double>() =
        sum_blocks(args, x, count, args.workspace,
                   [&](const auto* values, std::int64_t first, std::int64_t last) {
                     return sum_present_squares(values, at, first, last);
                   });
    return;
  }
  const std::uint8_t* bits = expand_mask(args, args.inputs[1], *x.type);
  *args.outputs[0].as<double>() =
      sum_squares_of(args, x, 0, count, bits, args.workspace + mask_bits_bytes(*x.type));
}

void sum_squares_of_parts(const Arguments& args) {
  const std::int64_t columns = spec::get_int(*args.attributes, "columns"),
                     column = spec::get_int(*args.attributes, "column"),
                     parts = spec::get_int(*args.attributes, "parts"),
                     part = spec::get_int(*args.attributes, "part"),
                     count = spec::get_int(*args.attributes, "count");
  auto* sums = args.outputs[0].as<double>();
  for (const TensorView& gradient : args.inputs) {
    std::fill(sums, sums + columns, 0.0);
    for (std::int64_t i = 0; i < count; ++i) {
      const spec::ElementRange own = spec::shard_elements(*gradient.type, parts, part + i);
      sums[column + i] =
          sum_squares_of(args, gradient, own.begin, own.end, nullptr, args.workspace);
    }
    sums += columns;
  }
}

void optimizer_step(const Arguments& args) {
  if (args.outputs[0].type->num_elements() == 0) return;
  const spec::OptimizerStep form = spec::optimizer_step_of(*args.attributes);
  if (form.mask && !updates_present(args, form))
    expand_mask(args, args.inputs[form.place_of_mask()], *args.inputs[form.gradient()].type);
  with_rule(form.rule, [&]<class Rule>(Rule*) {
    form.is_split ? run_rule<Rule, true>(args, form) : run_rule<Rule, false>(args, form);
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
