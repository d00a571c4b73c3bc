// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/norm/column_sums.h"
#include "kernels/cpu/norm/norm_rows.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// residual: null, or what is added to the rounded dx.
template <bool kStreams, bool kAdds, class T, class D>
void input_gradient(const T* x, const float* weight, const D* dy, const D* residual,
                    std::int64_t width, double epsilon, D* dx) {
  const float rstd = reciprocal_rms(x, width, epsilon);
  const double sums = sum_pairs(
      width,
      [&](std::int64_t i, Floats& first, Floats& second) {
        const Pair w = load_pair(weight + i), d = load_pair(dy + i), v = load_pair(x + i);
        first = madd(w.first * d.first, v.first * rstd, first);
        second = madd(w.second * d.second, v.second * rstd, second);
      },
      [&](std::int64_t i, int n, Floats& sum) {
        sum = madd(load(weight + i, n) * load(dy + i, n), load(x + i, n) * rstd, sum);
      });
  const auto mean = static_cast<float>(sums / static_cast<double>(width));
  const auto of = [=](Floats w, Floats d, Floats value) {
    return rstd * (w * d - value * rstd * mean);
  };
  const std::int64_t whole = width / kPair * kPair;
  for (std::int64_t i = 0; i < whole; i += kPair) {
    const Pair w = load_pair(weight + i), d = load_pair(dy + i), v = load_pair(x + i);
    Pair gradient{of(w.first, d.first, v.first), of(w.second, d.second, v.second)};
    if constexpr (kAdds) {
      const Pair before = load_pair(residual + i);
      gradient = {before.first + round_quickly<D>(gradient.first),
                  before.second + round_quickly<D>(gradient.second)};
    }
    store_pair<kStreams>(dx + i, gradient);
  }
  for_lanes(whole, width, [&](std::int64_t i, int n) {
    Floats gradient = of(load(weight + i, n), load(dy + i, n), load(x + i, n));
    if constexpr (kAdds) gradient = load(residual + i, n) + round_to<D>(gradient);
    store(dx + i, gradient, n);
  });
}

// Sums the rows of each group by fixed blocks from its first row on, then the blocks in ascending
// order, in double. A strip of columns of a group has one writer.
template <class T>
void sum_groups(const Arguments& args, const std::int32_t* offsets) {
  constexpr std::int64_t kStrip = 256;
  const std::int64_t width = columns(args.outputs[0]), groups = rows(args.outputs[0]),
                     strips = ceil_div(width, kStrip);
  const bool add = adds(args, 0);
  args.launch.team->for_tasks(groups * strips, [&](std::int64_t task) {
    const std::int64_t group = task / strips, first = task % strips * kStrip,
                       count = std::min(kStrip, width - first), last_row = offsets[group + 1];
    const T* dy = args.inputs[0].as<const T>() + first;
    WideSums sums[kStrip / kLanes];
    for (std::int64_t begin = offsets[group]; begin < last_row; begin += kRowBlock) {
      Floats partial[kStrip / kLanes]{};
      const std::int64_t end = std::min(last_row, begin + kRowBlock);
      for (std::int64_t row = begin; row < end; ++row)
        for_lanes(0, count, [&](std::int64_t i, int n) {
          partial[i / kLanes] += load(dy + row * width + i, n);
        });
      for (std::int64_t v = 0; v * kLanes < count; ++v) sums[v].add(partial[v]);
    }
    float* out = args.outputs[0].as<float>() + group * width + first;
    for_lanes(0, count, [&](std::int64_t i, int n) {
      const Floats sum = sums[i / kLanes].rounded();
      store(out + i, add ? load(out + i, n) + sum : sum, n);
    });
  });
}

}  // namespace

void rms_norm(const Arguments& args) {
  const std::int64_t width = size(args.inputs[1]);
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  if (width == 0) return;
  with_any_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    const bool streams = may_stream(args, width * std::int64_t{sizeof(T)});
    const float* weight = paired_weight<T>(args.inputs[1], args.workspace);
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      with_stream(streams, [&](auto constant) {
        for (std::int64_t row = begin; row < end; ++row) {
          const T* x = args.inputs[0].as<const T>() + row * width;
          normalise<constant.value>(x, weight, reciprocal_rms(x, width, epsilon), width,
                                    args.outputs[0].as<T>() + row * width);
        }
      });
    };
    args.launch.team->for_range(size(args.inputs[0]) / width, row_grain(width), run);
  });
}

void add_rms_norm(const Arguments& args) {
  const std::int64_t width = size(args.inputs[1]);
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  if (width == 0) return;
  with_any_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    const float* weight = paired_weight<T>(args.inputs[1], args.workspace);
    for_sums<T>(args, args.inputs[2], size(args.inputs[0]) / width, width,
                [&](std::int64_t row, const T* sum, auto streams) {
                  normalise<streams.value>(sum, weight, reciprocal_rms(sum, width, epsilon), width,
                                           args.outputs[1].as<T>() + row * width);
                });
  });
}

// dx = rstd · (w·dy − x̂ · mean(w·dy·x̂)) with x̂ = x·rstd; rounding counts as the identity.
void rms_norm_input_gradient(const Arguments& args) {
  const std::int64_t width = size(args.inputs[1]);
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  if (width == 0) return;
  const DType of_x = args.inputs[0].type->dtype, of_dy = args.inputs[2].type->dtype;
  with_gradient_types(of_x, of_dy, [&]<class T, class D>(T*, D*) {
    const bool streams = may_stream(args, width * std::int64_t{sizeof(D)});
    const float* weight = paired_weight<T>(args.inputs[1], args.workspace);
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      with_stream(streams, [&](auto constant) {
        for (std::int64_t at = begin * width; at < end * width; at += width) {
          const T* x = args.inputs[0].as<const T>() + at;
          const D* dy = args.inputs[2].as<const D>() + at;
          D* dx = args.outputs[0].as<D>() + at;
          if (args.inputs.size() > 3)
            input_gradient<constant.value, true>(x, weight, dy, args.inputs[3].as<const D>() + at,
                                                 width, epsilon, dx);
          else
            input_gradient<constant.value, false, T, D>(x, weight, dy, nullptr, width, epsilon, dx);
        }
      });
    };
    args.launch.team->for_range(size(args.inputs[0]) / width, row_grain(width), run);
  });
}

void rms_norm_weight_gradient(const Arguments& args) {
  const std::int64_t width = size(args.outputs[0]);
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  if (width == 0) return;
  const DType of_x = args.inputs[0].type->dtype, of_dy = args.inputs[1].type->dtype;
  with_gradient_types(of_x, of_dy, [&]<class T, class D>(T*, D*) {
    sum_by_blocks(
        args, size(args.inputs[0]) / width, width,
        [&](std::int64_t row, float* partial) {
          const T* x = args.inputs[0].as<const T>() + row * width;
          const D* dy = args.inputs[1].as<const D>() + row * width;
          const float rstd = reciprocal_rms(x, width, epsilon);
          // Whole pairs of a partial are in load_pair's order; unpair restores the order.
          const std::int64_t whole = width / kPair * kPair;
          for (std::int64_t i = 0; i < whole; i += kPair) {
            const Pair v = load_pair(x + i), d = load_pair(dy + i), sum = load_pair(partial + i);
            store_pair<false>(partial + i,
                              {madd(d.first, round_quickly<T>(v.first * rstd), sum.first),
                               madd(d.second, round_quickly<T>(v.second * rstd), sum.second)});
          }
          for_lanes(whole, width, [&](std::int64_t i, int n) {
            const Floats normalised = round_to<T>(load(x + i, n) * rstd);
            store(partial + i, madd(load(dy + i, n), normalised, load(partial + i, n)), n);
          });
        },
        [&](float* partial) { unpair<T>(partial, width); });
  });
}

void sum_rows(const Arguments& args) {
  const std::int64_t width = size(args.outputs[0]);
  with_any_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    if (args.inputs.size() > 1) return sum_groups<T>(args, args.inputs[1].as<const std::int32_t>());
    sum_by_blocks(
        args, rows(args.inputs[0]), width,
        [&](std::int64_t row, float* partial) {
          const T* dy = args.inputs[0].as<const T>() + row * width;
          for_lanes(0, width, [&](std::int64_t i, int n) {
            store(partial + i, load(partial + i, n) + load(dy + i, n), n);
          });
        },
        [](float*) {});
  });
}

// A sink has no value: dp = 0, so ds = −p · delta, of each row.
void sinks_gradient(const Arguments& args) {
  const std::int64_t num_heads = size(args.inputs[2]);
  const float *deltas = args.inputs[0].as<const float>(), *lse = args.inputs[1].as<const float>(),
              *sinks = args.inputs[2].as<const float>();
  sum_by_blocks(
      args, rows(args.inputs[0]), num_heads,
      [&](std::int64_t row, float* partial) {
        const std::int64_t at = row * num_heads;
        for_lanes(0, num_heads, [&](std::int64_t i, int n) {
          const Floats p = exp(load(sinks + i, n) - load(lse + at + i, n));
          store(partial + i, load(partial + i, n) - p * load(deltas + at + i, n), n);
        });
      },
      [](float*) {});
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
