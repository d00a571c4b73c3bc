// SPDX-License-Identifier: Apache-2.0
// Norms of one element, and products whose operand x is normalised first (spec/product_norm.h).
#pragma once
#include <vector>

#include "kernels/ref/access.h"
#include "spec/product_norm.h"

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

// Calls run(args) with the norm of x in place of x, and without the inputs of the norm. A thread
// keeps the normalised rows from call to call, so that a step allocates nothing.
template <class Run>
void with_norm(const Arguments& args, Run&& run) {
  const spec::Norm norm = spec::norm_of(*args.attributes);
  if (norm == spec::Norm::kNone) return run(args);
  thread_local std::vector<std::byte> bytes;
  thread_local std::vector<TensorView> views;
  const auto others = spec::without_norm(args.inputs, *args.attributes);
  const auto of_norm = spec::norm_inputs(args.inputs, *args.attributes);
  const TensorView& x = args.inputs[0];
  if (const auto size = static_cast<std::size_t>(x.type->num_bytes()); bytes.size() < size)
    bytes.resize(size);
  views.assign(others.begin(), others.end());
  views[0].data = bytes.data();
  const std::int64_t width = columns(x), step = spec::num_statistics(norm);
  for (std::int64_t i = 0; i < size(x); ++i) {
    const std::int64_t row = i / width, column = i % width;
    const double rstd = load(of_norm[0], row * step), weight = load(of_norm[1], column);
    store(views[0], i,
          norm == spec::Norm::kRms ? rms_normalised(x, i, rstd, weight)
                                   : layer_normalised(x, i, load(of_norm[0], row * step + 1), rstd,
                                                      weight, load(of_norm[2], column)));
  }
  Arguments normalised = args;
  normalised.inputs = views;
  run(normalised);
}

}  // namespace anabatic::kernels::ref
