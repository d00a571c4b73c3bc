// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

template <class T>
ANABATIC_INLINE void copy_run(T* to, const T* from, std::int64_t count) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
}

}  // namespace

void join_heads(const Arguments& args) {
  const TensorView &shared = args.inputs[0], &own = args.inputs[1];
  const std::int64_t heads = spec::get_int(*args.attributes, "num_heads"), front = columns(shared),
                     back = columns(own) / heads;
  with_float_type(own.type->dtype, [&]<class T>(T*) {
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const T* first = shared.as<const T>() + t * front;
        const T* from = own.as<const T>() + t * heads * back;
        T* y = args.outputs[0].as<T>() + t * heads * (front + back);
        for (std::int64_t h = 0; h < heads; ++h, from += back, y += front + back) {
          copy_run(y, first, front);
          copy_run(y + front, from, back);
        }
      }
    };
    args.launch.team->for_range(rows(own), row_grain(heads * (front + back)), run);
  });
}

// Heads are added in ascending order in f32, and rounded once.
void join_heads_gradient(const Arguments& args) {
  const TensorView &dy = args.inputs[0], &dshared = args.outputs[0], &down = args.outputs[1];
  const std::int64_t heads = spec::get_int(*args.attributes, "num_heads"), front = columns(dshared),
                     back = columns(down) / heads, head = front + back;
  with_float_type(dy.type->dtype, [&]<class T>(T*) {
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const T* row = dy.as<const T>() + t * heads * head;
        for_lanes(0, front, [&](std::int64_t i, int n) {
          Floats sum{};
          for (std::int64_t h = 0; h < heads; ++h) sum += load(row + h * head + i, n);
          store(dshared.as<T>() + t * front + i, sum, n);
        });
        for (std::int64_t h = 0; h < heads; ++h)
          copy_run(down.as<T>() + (t * heads + h) * back, row + h * head + front, back);
      }
    };
    args.launch.team->for_range(rows(dy), row_grain(heads * head), run);
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
