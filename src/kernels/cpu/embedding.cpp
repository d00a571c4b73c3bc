// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/rounding.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

struct Gradient {
  const Arguments& args;
  const std::int32_t* indices;
  std::int32_t* order;  // of tokens: within each block by index, then ascending
  std::int64_t num_tokens, width, padding;

  std::int64_t num_blocks() const { return ceil_div(num_tokens, kMostSumTerms); }
  std::int64_t end_of(std::int64_t block) const {
    return std::min(num_tokens, (block + 1) * kMostSumTerms);
  }
  float* row_of(std::int64_t index) const { return args.outputs[0].as<float>() + index * width; }

  // Columns [begin, end) of the rows that tokens name.
  void clear(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t t = 0; t < num_tokens; ++t)
      if (indices[t] != padding)
        std::fill(row_of(indices[t]) + begin, row_of(indices[t]) + end, 0.0f);
  }

  // Columns [begin, end) of a block of tokens: those of one index are summed first.
  template <class T>
  void add_block(std::int64_t block, std::int64_t begin, std::int64_t end) const {
    const T* dy = args.inputs[1].as<const T>();
    const std::int32_t* last = order + end_of(block);
    for (const std::int32_t *first = order + block * kMostSumTerms, *next = first; first < last;
         first = next) {
      const std::int32_t index = indices[*first];
      while (next < last && indices[*next] == index) ++next;
      if (index == padding) continue;
      float* row = row_of(index);
      for_lanes(begin, end, [&](std::int64_t i, int n) {
        Floats sum{};
        for (const std::int32_t* token = first; token < next; ++token)
          sum += load(dy + *token * width + i, n);
        store(row + i, load(row + i, n) + sum, n);
      });
    }
  }
};

}  // namespace

// Each thread owns a stripe of columns and goes through the blocks of tokens in ascending order.
// With `=`, rows that tokens name start at zero; all others, and the padding row, stay as they are.
void embedding_weight_gradient(const Arguments& args) {
  const Gradient gradient{.args = args,
                          .indices = args.inputs[0].as<const std::int32_t>(),
                          .order = reinterpret_cast<std::int32_t*>(args.workspace),
                          .num_tokens = rows(args.inputs[0]),
                          .width = columns(args.inputs[1]),
                          .padding = spec::get_int_or(*args.attributes, "padding", -1)};
  for (std::int64_t t = 0; t < gradient.num_tokens; ++t)
    require_index("embedding_weight_gradient", gradient.indices[t], rows(args.outputs[0]));
  args.launch.team->for_tasks(gradient.num_blocks(), [&](std::int64_t block) {
    sort_by_index(gradient.indices, block * kMostSumTerms, gradient.end_of(block), gradient.order);
  });
  with_float_type(args.inputs[1].type->dtype, [&]<class T>(T*) {
    args.launch.team->for_range(
        gradient.width, 4 * kLanes, [&](std::int64_t begin, std::int64_t end) {
          if (!adds(args, 0)) gradient.clear(begin, end);
          for (std::int64_t block = 0; block < gradient.num_blocks(); ++block)
            gradient.add_block<T>(block, begin, end);
        });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
