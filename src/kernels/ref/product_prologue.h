// SPDX-License-Identifier: Apache-2.0
// Norms of one element, dropout of rows, and products that apply them to x
// (spec/product_prologue.h).
#pragma once
#include <string_view>
#include <vector>

#include "base/philox.h"
#include "kernels/ref/access.h"
#include "spec/product_prologue.h"

namespace anabatic::kernels::ref {

// Element i of x as `rms_norm` gives it.
inline double rms_normalised(const TensorView& x, std::int64_t i, double rstd, double weight) {
  return weight * round_to(x.type->dtype, load(x, i) * rstd);
}
// As `layer_norm` does.
inline double layer_normalised(const TensorView& x, std::int64_t i, double mean, double rstd,
                               double weight, double bias) {
  return weight * (load(x, i) - mean) * rstd + bias;
}

// Dropout of the rows of x to y, which may be x (spec/dropout.h). `draws`: i32[3].
inline void drop_rows(const TensorView& x, const TensorView& draws, double rate,
                      std::string_view site, const TensorView& y) {
  const auto draw = [&](int i) { return static_cast<std::uint32_t>(load_index(draws, i)); };
  const PhiloxKey key{draw(spec::kDropoutKeyLow), draw(spec::kDropoutKeyHigh)};
  const std::uint64_t stream = stream_of(site);
  const double factor = spec::dropout_scale(rate);
  for (std::int64_t t = 0; t < rows(x); ++t)
    for (std::int64_t column = 0; column < columns(x); ++column) {
      const std::int64_t i = t * columns(x) + column,
                         bits = spec::dropout_bits(
                             key, stream, draw(spec::kDropoutRow) + static_cast<std::uint32_t>(t),
                             column);
      store(y, i, bits >= spec::dropout_threshold(rate) ? load(x, i) * factor : 0.0);
    }
}

// Calls run(args) with the norm of x and dropout of it in place of x, and without the inputs of
// both. A thread keeps the rows from call to call, so that a step allocates nothing.
template <class Run>
void with_prologue(const Arguments& args, Run&& run) {
  if (spec::num_prologue_inputs(*args.attributes) == 0) return run(args);
  const spec::Norm norm = spec::norm_of(*args.attributes);
  thread_local std::vector<std::byte> bytes;
  thread_local std::vector<TensorView> views;
  const auto others = spec::without_prologue(args.inputs, *args.attributes);
  const auto of_norm = spec::norm_inputs(args.inputs, *args.attributes);
  const TensorView& x = args.inputs[0];
  if (const auto size = static_cast<std::size_t>(x.type->num_bytes()); bytes.size() < size)
    bytes.resize(size);
  views.assign(others.begin(), others.end());
  views[0].data = bytes.data();
  const std::int64_t width = columns(x), step = spec::num_statistics(norm);
  for (std::int64_t i = 0; i < size(x); ++i) {
    const std::int64_t row = i / width, column = i % width;
    if (norm == spec::Norm::kNone) {
      store(views[0], i, load(x, i));
      continue;
    }
    const double rstd = load(of_norm[0], row * step), weight = load(of_norm[1], column);
    store(views[0], i,
          norm == spec::Norm::kRms ? rms_normalised(x, i, rstd, weight)
                                   : layer_normalised(x, i, load(of_norm[0], row * step + 1), rstd,
                                                      weight, load(of_norm[2], column)));
  }
  if (spec::drops_x(*args.attributes))
    drop_rows(views[0], args.inputs.back(), spec::get_double(*args.attributes, spec::kDropoutRate),
              spec::get_string(*args.attributes, spec::kDropoutSite), views[0]);
  Arguments with_new_x = args;
  with_new_x.inputs = views;
  run(with_new_x);
}

}  // namespace anabatic::kernels::ref
