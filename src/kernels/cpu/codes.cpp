// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/codes_math.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// body(row, block, its first column, its columns) over all blocks of rows split among threads.
template <class Body>
void for_blocks(const Arguments& args, const TensorView& x, Body&& body) {
  const std::int64_t width = columns(x), block = spec::get_int(*args.attributes, "block");
  args.team->for_range(rows(x), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t b = 0, first = 0; first < width; ++b, first += block)
        body(row, b, first, width - first < block ? width - first : block);
  });
}

}  // namespace

void dequantize(const Arguments& args) {
  const TensorView& to = args.outputs[0];
  const std::int64_t width = columns(to), blocks = columns(args.inputs[1]),
                     block = spec::get_int(*args.attributes, "block");
  const auto* codes = args.inputs[0].as<const std::int8_t>();
  const auto* scales = args.inputs[1].as<const BFloat16>();
  with_float_type(to.type->dtype, [&]<class T>(T*) {
    T* x = to.as<T>();
    const bool streams = may_stream(args, width * std::int64_t{sizeof(T)}) &&
                         block % (64 / std::int64_t{sizeof(T)}) == 0;
    with_stream(streams, [&](auto constant) {
      for_blocks(args, to,
                 [=](std::int64_t row, std::int64_t b, std::int64_t first, std::int64_t count) {
                   const std::int64_t at = row * width + first;
                   dequantize_block<decltype(constant)::value>(
                       codes + at, count, to_float(scales[row * blocks + b]), x + at);
                 });
    });
  });
}

void quantize(const Arguments& args) {
  const TensorView& from = args.inputs[0];
  const std::int64_t width = columns(from), blocks = columns(args.outputs[1]);
  auto* codes = args.outputs[0].as<std::int8_t>();
  auto* scales = args.outputs[1].as<BFloat16>();
  with_float_type(from.type->dtype, [&]<class T>(T*) {
    const T* x = from.as<const T>();
    for_blocks(args, from,
               [=](std::int64_t row, std::int64_t b, std::int64_t first, std::int64_t count) {
                 const std::int64_t at = row * width + first;
                 scales[row * blocks + b] = quantize_block(x + at, count, codes + at);
               });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
