// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/cpu/adamw_update.h"
#include "kernels/cpu/pack_panels.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

ANABATIC_INLINE Doubles to_doubles(const float* p) {
  FewFloats x;
  std::memcpy(&x, p, sizeof x);
  return __builtin_convertvector(x, Doubles);
}

// Of the elements of one block, in double.
template <class T>
double sum_squares_of(const T* x, std::int64_t count) {
  constexpr int kHalf = kLanes / 2;
  Doubles sums[2] = {};
  for_lanes(0, count, [&](std::int64_t i, int n) {
    float lanes[kLanes];
    store(lanes, load(x + i, n));
    for (int half = 0; half < 2; ++half) {
      const Doubles value = to_doubles(lanes + half * kHalf);
      sums[half] += value * value;
    }
  });
  return sum_lanes(sums[0] + sums[1]);
}

// Elements of a parameter above which its second packing bypasses the caches: nothing reads it
// before the rest of the update has passed through them.
constexpr std::int64_t kStreamedElements = std::int64_t{1} << 18;

// One task updates 16 rows, so many columns at a time that what the packings read is still near.
template <class Update, class To, bool kStreamed>
void sweep(const Arguments& args) {
  constexpr std::int64_t kColumns = 512;
  const Update update(args);
  const TensorView &parameter = args.outputs[0], &packed = args.outputs[3],
                   &transposed = args.outputs[4];
  const PanelShape shape = panel_shape(*packed.type), turned = panel_shape(*transposed.type);
  const std::int64_t rows = parameter.type->dim(-2), width = columns(parameter);
  const std::int64_t blocks = ceil_div(rows, kPanelColumns);
  const std::int64_t matrices = parameter.type->ndim() == 3 ? parameter.type->dim(0) : 1;
  args.team->for_tasks(matrices * blocks, [&](std::int64_t task) {
    constexpr bool kRounds = sizeof(To) == sizeof(BFloat16);
    alignas(64) BFloat16 copy[kRounds ? kPanelColumns * kColumns : 1];
    const std::int64_t matrix = task / blocks, begin = task % blocks * kPanelColumns;
    const std::int64_t end = std::min(rows, begin + kPanelColumns);
    const std::int64_t first = (matrix * rows + begin) * width;
    To* panel = packed.as<To>() + matrix * shape.num_elements() +
                begin / kPanelColumns * shape.panel_elements();
    To* panels = transposed.as<To>() + matrix * turned.num_elements();
    for (std::int64_t k = 0; k < width; k += kColumns) {
      const std::int64_t count = std::min(kColumns, width - k);
      for (std::int64_t row = 0; row < end - begin; ++row) {
        const std::int64_t at = first + row * width + k;
        update.run(at, at + count, kRounds ? copy + row * kColumns : nullptr);
      }
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

// Every state in panels: one task updates a few hundred rows of one panel, a few at a time, which
// the packings read while they are near. `packed` and `transposed` may be null.
template <class Update, class To, bool kStreamed>
void sweep_panels(const Arguments& args, const TensorView* packed, const TensorView* transposed) {
  constexpr std::int64_t kTaskRows = 512, kRows = 32;
  const Update update(args);
  const TensorType& type = *args.outputs[0].type;
  const PanelShape shape = panel_shape(DType::kFloat32, type.dim(-2), type.dim(-1), false);
  const PanelShape plain = packed != nullptr ? panel_shape(*packed->type) : shape;
  const PanelShape turned = transposed != nullptr ? panel_shape(*transposed->type) : shape;
  const bool is_packed = packed != nullptr || transposed != nullptr;
  const std::int64_t half_elements = round_up(shape.depth, 2) * kPanelColumns;
  const Stretch stretch =
      stretch_of(type, *args.outputs[Update::kFirstMoment].type, *args.attributes);
  const std::int64_t parts = ceil_div(shape.depth, kTaskRows);
  args.team->for_tasks((stretch.end - stretch.begin) * parts, [&](std::int64_t task) {
    constexpr bool kRounds = sizeof(To) == sizeof(BFloat16);
    alignas(64) BFloat16 copy[kRounds ? kRows * kPanelColumns : 1];
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
    const typename Update::Panel place{
        .wide = panel * shape.panel_elements(),
        .half = panel * half_elements,
        .depth = shape.depth,
        .columns = columns,
        .element = static_cast<std::uint32_t>((matrix * shape.columns + column) * shape.depth),
        .stride = static_cast<std::uint32_t>(shape.depth)};
    const std::int64_t end = std::min(shape.depth, begin + kTaskRows);
    for (std::int64_t k = begin; k < end; k += kRows) {
      const std::int64_t rows = std::min(kRows, end - k);
      update.run(place, k, k + rows, kRounds && is_packed ? copy : nullptr);
      if constexpr (kRounds)
        targets.template write<kStreamed>(copy, k, k + rows);
      else
        targets.template write<kStreamed>(
            args.outputs[0].as<float>() + place.wide + k * kPanelColumns, k, k + rows);
    }
    if (kStreamed) stream_end();
  });
}

template <class Update, class To>
void run_sweep(const Arguments& args, const TensorView* packed, const TensorView* transposed) {
  const bool streams = size(args.outputs[0]) >= kStreamedElements;
  if (is_panels(args.outputs[0].type->layout))
    streams ? sweep_panels<Update, To, true>(args, packed, transposed)
            : sweep_panels<Update, To, false>(args, packed, transposed);
  else if constexpr (!std::is_same_v<typename Update::Weight, BFloat16>)
    streams ? sweep<Update, To, true>(args) : sweep<Update, To, false>(args);
}

// Without packings.
template <class Update>
void run_alone(const Arguments& args) {
  using To = typename Update::Weight;
  if (is_panels(args.outputs[0].type->layout))
    return sweep_panels<Update, To, false>(args, nullptr, nullptr);
  const Update update(args);
  const Stretch stretch =
      stretch_of(*args.outputs[0].type, *args.outputs[Update::kFirstMoment].type, *args.attributes);
  args.team->for_range(stretch.end - stretch.begin, kElementGrain,
                       [&](std::int64_t begin, std::int64_t end) {
                         update.run(stretch.begin + begin, stretch.begin + end);
                       });
}

// Calls body with a null pointer to the update that fits the moments.
template <bool kSplit, class Body>
void with_update(const Arguments& args, Body&& body) {
  if (args.outputs[0].type->num_elements() == 0) return;
  if (args.outputs[Places<kSplit>::kFirst].type->dtype == DType::kBFloat16)
    body(static_cast<AdamW<kSplit, true>*>(nullptr));
  else
    body(static_cast<AdamW<kSplit, false>*>(nullptr));
}

}  // namespace

// Workspace: double of each block.
void sum_squares(const Arguments& args) {
  const std::int64_t count = stored_elements(*args.inputs[0].type),
                     num_blocks = ceil_div(count, kElementBlock);
  auto* partials = reinterpret_cast<double*>(args.workspace);
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    const T* x = args.inputs[0].as<const T>();
    args.team->for_range(num_blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block)
        partials[block] = sum_squares_of(x + block * kElementBlock,
                                         std::min(kElementBlock, count - block * kElementBlock));
    });
  });
  double sum = 0;
  for (std::int64_t block = 0; block < num_blocks; ++block) sum += partials[block];
  *args.outputs[0].as<double>() = sum;
}

void adamw(const Arguments& args) {
  with_update<false>(args, [&]<class Update>(Update*) { run_alone<Update>(args); });
}

void adamw_pack(const Arguments& args) {
  with_update<false>(args, [&]<class Update>(Update*) {
    with_float_type(args.outputs[3].type->dtype, [&]<class To>(To*) {
      run_sweep<Update, To>(args, &args.outputs[3], &args.outputs[4]);
    });
  });
}

// States in panels only.
void adamw_pack_transposed(const Arguments& args) {
  with_update<false>(args, [&]<class Update>(Update*) {
    with_float_type(args.outputs[3].type->dtype,
                    [&]<class To>(To*) { run_sweep<Update, To>(args, nullptr, &args.outputs[3]); });
  });
}

void adamw_split(const Arguments& args) {
  with_update<true>(args, [&]<class Update>(Update*) { run_alone<Update>(args); });
}

// States in panels only.
void adamw_split_pack_transposed(const Arguments& args) {
  with_update<true>(args, [&]<class Update>(Update*) {
    run_sweep<Update, BFloat16>(args, nullptr, &args.outputs[4]);
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
