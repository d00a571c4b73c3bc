// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/norm/column_sums.h"
#include "kernels/cpu/norm/norm_rows.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// y = (x - mean) · rstd · weight + bias; weight and bias from paired_weight.
template <bool kStreams, class T>
void normalise(const T* x, const float* weight, const float* bias, const Moments& of_row,
               std::int64_t width, T* y) {
  const auto [mean, rstd] = of_row;
  const std::int64_t whole = width / kPair * kPair;
  for (std::int64_t i = 0; i < whole; i += kPair) {
    const Pair value = load_pair(x + i), w = load_pair(weight + i), b = load_pair(bias + i);
    store_pair<kStreams>(y + i, {layer_normalised(value.first, mean, rstd, w.first, b.first),
                                 layer_normalised(value.second, mean, rstd, w.second, b.second)});
  }
  for_lanes(whole, width, [&, mean = mean, rstd = rstd](std::int64_t i, int n) {
    store(y + i,
          layer_normalised(load(x + i, n), mean, rstd, load(weight + i, n), load(bias + i, n)), n);
  });
}

// dx = rstd · (g − mean(g) − x̂ · mean(g · x̂)) with g = weight · dy and x̂ = (x − mean) · rstd.
template <bool kStreams, class T>
void input_gradient(const T* x, const float* weight, const T* dy, std::int64_t width,
                    double epsilon, T* dx) {
  const Moments of_row = moments(x, width, epsilon);
  const float mean = of_row.mean, rstd = of_row.rstd;
  const auto count = static_cast<double>(width);
  const auto mean_g =
      static_cast<float>(sum_pairs(
                             width,
                             [&](std::int64_t i, Floats& first, Floats& second) {
                               const Pair w = load_pair(weight + i), d = load_pair(dy + i);
                               first = madd(w.first, d.first, first);
                               second = madd(w.second, d.second, second);
                             },
                             [&](std::int64_t i, int n, Floats& lanes) {
                               lanes = madd(load(weight + i, n), load(dy + i, n), lanes);
                             }) /
                         count);
  const auto mean_normalised =
      static_cast<float>(sum_pairs(
                             width,
                             [&](std::int64_t i, Floats& first, Floats& second) {
                               const Pair w = load_pair(weight + i), d = load_pair(dy + i);
                               const Pair centred = load_pair(x + i) - mean;
                               first = madd(w.first * d.first, centred.first * rstd, first);
                               second = madd(w.second * d.second, centred.second * rstd, second);
                             },
                             [&](std::int64_t i, int n, Floats& lanes) {
                               lanes = madd(load(weight + i, n) * load(dy + i, n),
                                            (load(x + i, n) - mean) * rstd, lanes);
                             }) /
                         count);
  const auto of = [=](Floats w, Floats d, Floats centred) {
    return rstd * (w * d - mean_g - centred * rstd * mean_normalised);
  };
  const std::int64_t whole = width / kPair * kPair;
  for (std::int64_t i = 0; i < whole; i += kPair) {
    const Pair w = load_pair(weight + i), d = load_pair(dy + i), centred = load_pair(x + i) - mean;
    store_pair<kStreams>(
        dx + i, {of(w.first, d.first, centred.first), of(w.second, d.second, centred.second)});
  }
  for_lanes(whole, width, [&](std::int64_t i, int n) {
    store(dx + i, of(load(weight + i, n), load(dy + i, n), load(x + i, n) - mean), n);
  });
}

// Adds a row to the partial sums of dweight and dbias; whole pairs are in load_pair's order of T.
template <class T>
void add_weight_gradient(const T* x, const T* dy, std::int64_t width, double epsilon,
                         float* dweight, float* dbias) {
  const Moments of_row = moments(x, width, epsilon);
  const float mean = of_row.mean, rstd = of_row.rstd;
  const std::int64_t whole = width / kPair * kPair;
  for (std::int64_t i = 0; i < whole; i += kPair) {
    const Pair centred = load_pair(x + i) - mean, d = load_pair(dy + i), w = load_pair(dweight + i),
               b = load_pair(dbias + i);
    store_pair<false>(dweight + i, {madd(d.first, centred.first * rstd, w.first),
                                    madd(d.second, centred.second * rstd, w.second)});
    store_pair<false>(dbias + i, {b.first + d.first, b.second + d.second});
  }
  for_lanes(whole, width, [&](std::int64_t i, int n) {
    const Floats d = load(dy + i, n), normalised = (load(x + i, n) - mean) * rstd;
    store(dweight + i, madd(d, normalised, load(dweight + i, n)), n);
    store(dbias + i, load(dbias + i, n) + d, n);
  });
}

}  // namespace

void layer_norm(const Arguments& args) {
  const std::int64_t width = size(args.inputs[1]);
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  if (width == 0) return;
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    const bool streams = may_stream(args, width * std::int64_t{sizeof(T)});
    const float* weight = paired_weight<T>(args.inputs[1], args.workspace);
    // Rows of f32 have no workspace.
    const std::int64_t after_weight = sizeof(T) == sizeof(float) ? 0 : width * 4;
    const float* bias = paired_weight<T>(args.inputs[2], args.workspace + after_weight);
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      with_stream(streams, [&](auto constant) {
        for (std::int64_t at = begin * width; at < end * width; at += width) {
          const T* x = args.inputs[0].as<const T>() + at;
          normalise<constant.value>(x, weight, bias, moments(x, width, epsilon), width,
                                    args.outputs[0].as<T>() + at);
        }
      });
    };
    args.launch.team->for_range(rows(args.inputs[0]), row_grain(width), run);
  });
}

void layer_norm_input_gradient(const Arguments& args) {
  const std::int64_t width = size(args.inputs[1]);
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  if (width == 0) return;
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    const bool streams = may_stream(args, width * std::int64_t{sizeof(T)});
    const float* weight = paired_weight<T>(args.inputs[1], args.workspace);
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      with_stream(streams, [&](auto constant) {
        for (std::int64_t at = begin * width; at < end * width; at += width)
          input_gradient<constant.value>(args.inputs[0].as<const T>() + at, weight,
                                         args.inputs[2].as<const T>() + at, width, epsilon,
                                         args.outputs[0].as<T>() + at);
      });
    };
    args.launch.team->for_range(rows(args.inputs[0]), row_grain(width), run);
  });
}

void layer_norm_weight_gradient(const Arguments& args) {
  const std::int64_t width = columns(args.inputs[0]);
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  if (width == 0) return;
  with_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    sum_by_blocks(
        args, rows(args.inputs[0]), width,
        [&](std::int64_t row, float* partial) {
          add_weight_gradient(args.inputs[0].as<const T>() + row * width,
                              args.inputs[1].as<const T>() + row * width, width, epsilon, partial,
                              partial + width);
        },
        [&](float* partial) {
          unpair<T>(partial, width);
          unpair<T>(partial + width, width);
        });
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
