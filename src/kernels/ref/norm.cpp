// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "kernels/ref/access.h"
#include "kernels/ref/product_prologue.h"
#include "kernels/ref/rows.h"

namespace anabatic::kernels::ref {
namespace {

// What norms take of a row, as `norm_statistics` stores it: f32, or f64 of f64.
double as_statistic(const TensorView& x, double value) {
  return x.type->dtype == DType::kFloat64 ? value : round_to(DType::kFloat32, value);
}

// 1 / sqrt(mean square + epsilon) of `width` elements from `begin`.
double reciprocal_rms(const TensorView& x, std::int64_t begin, std::int64_t width, double epsilon) {
  double sum = 0;
  for (std::int64_t j = 0; j < width; ++j) sum += load(x, begin + j) * load(x, begin + j);
  return 1.0 / std::sqrt(sum / static_cast<double>(width) + epsilon);
}

// Of `width` elements from `begin`: the mean, and 1 / sqrt(variance + epsilon).
struct Moments {
  double mean = 0, rstd = 0;
};
Moments moments(const TensorView& x, std::int64_t begin, std::int64_t width, double epsilon) {
  Moments of_row;
  for (std::int64_t j = 0; j < width; ++j) of_row.mean += load(x, begin + j);
  of_row.mean /= static_cast<double>(width);
  double squares = 0;
  for (std::int64_t j = 0; j < width; ++j) {
    const double centred = load(x, begin + j) - of_row.mean;
    squares += centred * centred;
  }
  of_row.rstd = 1.0 / std::sqrt(squares / static_cast<double>(width) + epsilon);
  return of_row;
}

void norm_statistics_of(const TensorView& x, const spec::Attributes& attributes,
                        const TensorView& statistics) {
  const std::int64_t width = columns(x);
  const double epsilon = spec::get_double(attributes, "epsilon");
  for (std::int64_t row = 0; row < rows(x); ++row) {
    if (spec::norm_of(attributes) == spec::Norm::kRms) {
      store(statistics, row, reciprocal_rms(x, row * width, width, epsilon));
      continue;
    }
    const auto [mean, rstd] = moments(x, row * width, width, epsilon);
    store(statistics, 2 * row, rstd);
    store(statistics, 2 * row + 1, mean);
  }
}

}  // namespace

void normalise(const TensorView& x, const TensorView& weight, double epsilon, const TensorView& y) {
  const std::int64_t width = size(weight);
  for (std::int64_t begin = 0; begin < size(x); begin += width) {
    const double rstd = as_statistic(x, reciprocal_rms(x, begin, width, epsilon));
    for (std::int64_t j = 0; j < width; ++j)
      store(y, begin + j, rms_normalised(x, begin + j, rstd, load(weight, j)));
  }
}

void rms_norm(const Arguments& args) {
  normalise(args.inputs[0], args.inputs[1], spec::get_double(*args.attributes, "epsilon"),
            args.outputs[0]);
}

void norm_statistics(const Arguments& args) {
  norm_statistics_of(args.inputs[0], *args.attributes, args.outputs[0]);
}

void add_norm_statistics(const Arguments& args) {
  const TensorView &x = args.inputs[0], &residual = args.inputs[1], &sum = args.outputs[0];
  for (std::int64_t i = 0; i < size(x); ++i) store(sum, i, load(x, i) + load(residual, i));
  norm_statistics_of(sum, *args.attributes, args.outputs[1]);
}

void add_rms_norm(const Arguments& args) {
  const TensorView &x = args.inputs[0], &residual = args.inputs[2], &sum = args.outputs[0];
  for (std::int64_t i = 0; i < size(x); ++i) store(sum, i, load(x, i) + load(residual, i));
  normalise(sum, args.inputs[1], spec::get_double(*args.attributes, "epsilon"), args.outputs[1]);
}

// dx = rstd · (w·dy − x̂ · mean(w·dy·x̂)) with x̂ = x·rstd; rounding counts as the identity. A
// residual is added to the rounded dx.
void rms_norm_input_gradient(const Arguments& args) {
  const TensorView &x = args.inputs[0], &weight = args.inputs[1], &dy = args.inputs[2];
  const std::int64_t width = size(weight);
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  for (std::int64_t begin = 0; begin < size(x); begin += width) {
    const double rstd = reciprocal_rms(x, begin, width, epsilon);
    double mean = 0;
    for (std::int64_t j = 0; j < width; ++j)
      mean += load(weight, j) * load(dy, begin + j) * load(x, begin + j) * rstd;
    mean /= static_cast<double>(width);
    for (std::int64_t j = 0; j < width; ++j) {
      const std::int64_t i = begin + j;
      const double dx = rstd * (load(weight, j) * load(dy, i) - load(x, i) * rstd * mean);
      const bool adds_residual = args.inputs.size() > 3;
      store(args.outputs[0], i,
            adds_residual ? load(args.inputs[3], i) + round_to(x.type->dtype, dx) : dx);
    }
  }
}

void rms_norm_weight_gradient(const Arguments& args) {
  const TensorView &x = args.inputs[0], &dy = args.inputs[1];
  const std::int64_t width = spec::get_int(*args.attributes, "width");
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  for (std::int64_t j = 0; j < width; ++j) {
    double sum = 0;
    for (std::int64_t begin = 0; begin < size(x); begin += width) {
      const double rstd = reciprocal_rms(x, begin, width, epsilon);
      sum += load(dy, begin + j) * round_to(x.type->dtype, load(x, begin + j) * rstd);
    }
    put(args, 0, j, sum);
  }
}

void layer_norm(const Arguments& args) {
  const TensorView &x = args.inputs[0], &weight = args.inputs[1], &bias = args.inputs[2];
  const std::int64_t width = size(weight);
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  for (std::int64_t begin = 0; begin < size(x); begin += width) {
    const Moments of_row = moments(x, begin, width, epsilon);
    const double mean = as_statistic(x, of_row.mean), rstd = as_statistic(x, of_row.rstd);
    for (std::int64_t j = 0; j < width; ++j)
      store(args.outputs[0], begin + j,
            layer_normalised(x, begin + j, mean, rstd, load(weight, j), load(bias, j)));
  }
}

// dx = rstd · (g − mean(g) − x̂ · mean(g · x̂)) with g = w · dy and x̂ = (x − mean) · rstd.
void layer_norm_input_gradient(const Arguments& args) {
  const TensorView &x = args.inputs[0], &weight = args.inputs[1], &dy = args.inputs[2];
  const std::int64_t width = size(weight);
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  for (std::int64_t begin = 0; begin < size(x); begin += width) {
    const auto [mean, rstd] = moments(x, begin, width, epsilon);
    const auto normalised = [&, mean = mean, rstd = rstd](std::int64_t j) {
      return (load(x, begin + j) - mean) * rstd;
    };
    double sum = 0, sum_normalised = 0;
    for (std::int64_t j = 0; j < width; ++j) {
      const double g = load(weight, j) * load(dy, begin + j);
      sum += g;
      sum_normalised += g * normalised(j);
    }
    const double count = static_cast<double>(width);
    for (std::int64_t j = 0; j < width; ++j)
      store(args.outputs[0], begin + j,
            rstd * (load(weight, j) * load(dy, begin + j) - sum / count -
                    normalised(j) * sum_normalised / count));
  }
}

void layer_norm_weight_gradient(const Arguments& args) {
  const TensorView &x = args.inputs[0], &dy = args.inputs[1];
  const std::int64_t width = columns(x);
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  std::vector<double> dweight(static_cast<std::size_t>(width), 0), dbias = dweight;
  for (std::int64_t begin = 0; begin < size(x); begin += width) {
    const auto [mean, rstd] = moments(x, begin, width, epsilon);
    for (std::int64_t j = 0; j < width; ++j) {
      const auto column = static_cast<std::size_t>(j);
      dweight[column] += load(dy, begin + j) * (load(x, begin + j) - mean) * rstd;
      dbias[column] += load(dy, begin + j);
    }
  }
  for (std::int64_t j = 0; j < width; ++j) {
    put(args, 0, j, dweight[static_cast<std::size_t>(j)]);
    put(args, 1, j, dbias[static_cast<std::size_t>(j)]);
  }
}

}  // namespace anabatic::kernels::ref
