// SPDX-License-Identifier: Apache-2.0
#include "spec/rope.h"

#include <algorithm>
#include <cmath>

#include "kernels/ref/access.h"
#include "kernels/ref/rows.h"

namespace anabatic::kernels::ref {

void rope_table(const Arguments& args) {
  const TensorView& positions = args.inputs[0];
  std::int64_t length = 1;
  for (std::int64_t t = 0; t < rows(positions); ++t)
    length = std::max(length, 1 + load_index(positions, t));
  const spec::RopeFrequencies frequencies =
      spec::rope_frequencies(spec::rope_from_attributes(*args.attributes), length);
  const std::int64_t width = columns(args.outputs[0]), half = width / 2;
  for (std::int64_t t = 0; t < rows(positions); ++t)
    for (std::int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(load_index(positions, t)) *
                          frequencies.inverse[static_cast<std::size_t>(i)];
      const double scale = frequencies.scale;
      store(args.outputs[0], t * width + i, scale * std::cos(static_cast<double>(angle)));
      store(args.outputs[0], t * width + half + i, scale * std::sin(static_cast<double>(angle)));
    }
}

namespace {

// y may be x.
void rotate(const TensorView& x, const TensorView& table, const TensorView& y,
            const spec::Attributes& attributes) {
  const std::int64_t head_dim = spec::get_int(attributes, "head_dim");
  const double sign = spec::get_bool_or(attributes, "inverse", false) ? -1.0 : 1.0;
  const std::int64_t width = columns(x), rotary = columns(table), half = rotary / 2;
  for (std::int64_t t = 0; t < rows(x); ++t)
    for (std::int64_t begin = t * width; begin < (t + 1) * width; begin += head_dim) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double c = load(table, t * rotary + i);
        const double s = sign * load(table, t * rotary + half + i);
        const double first = load(x, begin + i), second = load(x, begin + half + i);
        store(y, begin + i, first * c - second * s);
        store(y, begin + half + i, second * c + first * s);
      }
      for (std::int64_t i = rotary; i < head_dim; ++i) store(y, begin + i, load(x, begin + i));
    }
}

}  // namespace

void rope(const Arguments& args) {
  rotate(args.inputs[0], args.inputs[1], args.outputs[0], *args.attributes);
}

void rope_pair(const Arguments& args) {
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    const TensorView *x = &args.inputs[i], *y = &args.outputs[i];
    if (args.inputs.size() > 3) {
      normalise(*x, args.inputs[3 + i], spec::get_double(*args.attributes, "epsilon"), *y);
      x = y;
    }
    rotate(*x, args.inputs[2], *y, *args.attributes);
  }
}

}  // namespace anabatic::kernels::ref
