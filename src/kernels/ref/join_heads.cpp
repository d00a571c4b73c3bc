// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/access.h"
#include "kernels/ref/rows.h"

namespace anabatic::kernels::ref {

void join_heads(const Arguments& args) {
  const TensorView &shared = args.inputs[0], &own = args.inputs[1];
  const std::int64_t heads = spec::get_int(*args.attributes, "num_heads"), front = columns(shared),
                     back = columns(own) / heads;
  std::int64_t at = 0;
  for (std::int64_t t = 0; t < rows(own); ++t)
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < front; ++i)
        store(args.outputs[0], at++, load(shared, t * front + i));
      for (std::int64_t i = 0; i < back; ++i)
        store(args.outputs[0], at++, load(own, (t * heads + h) * back + i));
    }
}

void join_heads_gradient(const Arguments& args) {
  const TensorView& dy = args.inputs[0];
  const std::int64_t heads = spec::get_int(*args.attributes, "num_heads"),
                     front = columns(args.outputs[0]), back = columns(args.outputs[1]) / heads,
                     head = front + back;
  for (std::int64_t t = 0; t < rows(dy); ++t) {
    for (std::int64_t i = 0; i < front; ++i) {
      double sum = 0;
      for (std::int64_t h = 0; h < heads; ++h) sum += load(dy, (t * heads + h) * head + i);
      store(args.outputs[0], t * front + i, sum);
    }
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < back; ++i)
        store(args.outputs[1], (t * heads + h) * back + i,
              load(dy, (t * heads + h) * head + front + i));
  }
}

}  // namespace anabatic::kernels::ref
