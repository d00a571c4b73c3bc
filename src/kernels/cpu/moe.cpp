// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/rounding.h"
#include "kernels/cpu/vector_pairs.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// y[t] = Σⱼ factor(t·k + j) · x[slots[t·k + j]], ascending j. The rows of tokens ahead are fetched:
// they lie anywhere.
template <class T, class Factor>
void sum_slots(const Arguments& args, const TensorView& x, const std::int32_t* slots,
               std::int64_t top_k, Factor&& factor) {
  constexpr std::int64_t kAhead = 3;
  const std::int64_t width = columns(x), num_rows = rows(args.outputs[0]),
                     whole = width / kPair * kPair;
  const bool streams = may_stream(args, width * std::int64_t{sizeof(T)});
  const auto row_of = [&](std::int64_t slot) { return x.as<const T>() + slots[slot] * width; };
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    with_stream(streams, [&](auto constant) {
      for (std::int64_t t = begin; t < end; ++t) {
        T* y = args.outputs[0].as<T>() + t * width;
        const std::int64_t first = t * top_k, last = first + top_k, ahead = kAhead * top_k;
        for (std::int64_t slot = first; t + kAhead < end && slot < last; ++slot)
          for (std::int64_t i = 0; i < width; i += 64 / std::int64_t{sizeof(T)})
            __builtin_prefetch(row_of(slot + ahead) + i);
        if (top_k == 2) {  // what most models have: rows and factors stay in registers
          const T *x0 = row_of(first), *x1 = row_of(first + 1);
          const float f0 = factor(first), f1 = factor(first + 1);
          for (std::int64_t i = 0; i < whole; i += kPair) {
            const Pair a = load_pair(x0 + i), b = load_pair(x1 + i);
            store_pair<constant.value>(y + i, {(Floats{} + f0 * a.first) + f1 * b.first,
                                               (Floats{} + f0 * a.second) + f1 * b.second});
          }
        } else {
          for (std::int64_t i = 0; i < whole; i += kPair) {
            Pair sum{};
            for (std::int64_t slot = first; slot < last; ++slot) {
              const Pair value = load_pair(row_of(slot) + i);
              const float scale = factor(slot);
              sum.first += scale * value.first;
              sum.second += scale * value.second;
            }
            store_pair<constant.value>(y + i, sum);
          }
        }
        for_lanes(whole, width, [&](std::int64_t i, int n) {
          Floats sum{};
          for (std::int64_t slot = first; slot < last; ++slot)
            sum += factor(slot) * load(row_of(slot) + i, n);
          store(y + i, sum, n);
        });
      }
    });
  };
  args.launch.team->for_range(num_rows, row_grain(width * top_k), run);
}

void require_experts(const TensorView& experts, std::int64_t num_experts) {
  const auto* data = experts.as<const std::int32_t>();
  for (std::int64_t slot = 0; slot < size(experts); ++slot)
    require_index("expert_bias: expert", data[slot], num_experts);
}

}  // namespace

void expert_bias(const Arguments& args) {
  const TensorView &x = args.inputs[0], &bias = args.inputs[1];
  const auto* weights = args.inputs[2].as<const float>();
  const auto* experts = args.inputs[3].as<const std::int32_t>();
  const std::int64_t width = columns(x), top_k = columns(args.inputs[2]);
  require_experts(args.inputs[3], rows(bias));
  with_float_type(x.type->dtype, [&]<class T>(T*) {
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t)
        for_lanes(t * width, (t + 1) * width, [&](std::int64_t i, int n) {
          Floats sum{};
          for (std::int64_t slot = t * top_k; slot < (t + 1) * top_k; ++slot) {
            const float* row = bias.as<const float>() + experts[slot] * width;
            sum = madd(broadcast(weights[slot]), load(row + (i - t * width), n), sum);
          }
          store(args.outputs[0].as<T>() + i, load(x.as<const T>() + i, n) + sum, n);
        });
    };
    args.launch.team->for_range(rows(x), row_grain(width * top_k), run);
  });
}

void expert_bias_router_gradient(const Arguments& args) {
  const TensorView &dy = args.inputs[0], &bias = args.inputs[1];
  const auto* experts = args.inputs[2].as<const std::int32_t>();
  const std::int64_t width = columns(dy), top_k = columns(args.inputs[2]);
  require_experts(args.inputs[2], rows(bias));
  with_float_type(dy.type->dtype, [&]<class T>(T*) {
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t slot = begin; slot < end; ++slot) {
        const T* d = dy.as<const T>() + slot / top_k * width;
        const float* row = bias.as<const float>() + experts[slot] * width;
        const double sum = sum_of_row(width, [&](std::int64_t i, int n, Floats before) {
          return madd(load(d + i, n), load(row + i, n), before);
        });
        args.outputs[0].as<float>()[slot] = static_cast<float>(sum);
      }
    };
    args.launch.team->for_range(size(args.inputs[2]), row_grain(width), run);
  });
}

// A task sums a strip of columns for all experts, token by token, in double.
void expert_bias_weight_gradient(const Arguments& args) {
  constexpr std::int64_t kVectors = kExpertBiasStrip / kLanes;
  const TensorView &dy = args.inputs[0], &gradient = args.outputs[0];
  const auto* weights = args.inputs[1].as<const float>();
  const auto* experts = args.inputs[2].as<const std::int32_t>();
  const std::int64_t width = columns(dy), top_k = columns(args.inputs[2]),
                     num_experts = rows(gradient);
  const bool add = adds(args, 0);
  require_experts(args.inputs[2], num_experts);
  with_float_type(dy.type->dtype, [&]<class T>(T*) {
    args.launch.team->for_tasks(ceil_div(width, kExpertBiasStrip), [&](std::int64_t strip) {
      auto* sums = reinterpret_cast<WideSums*>(args.workspace) + strip * num_experts * kVectors;
      std::fill(sums, sums + num_experts * kVectors, WideSums{});
      const std::int64_t first = strip * kExpertBiasStrip,
                         count = std::min(kExpertBiasStrip, width - first);
      for (std::int64_t t = 0; t < rows(dy); ++t)
        for_lanes(0, count, [&](std::int64_t i, int n) {
          const Floats d = load(dy.as<const T>() + t * width + first + i, n);
          for (std::int64_t slot = t * top_k; slot < (t + 1) * top_k; ++slot)
            sums[experts[slot] * kVectors + i / kLanes].add(weights[slot] * d);
        });
      for (std::int64_t e = 0; e < num_experts; ++e) {
        float* out = gradient.as<float>() + e * width + first;
        for_lanes(0, count, [&](std::int64_t i, int n) {
          const Floats sum = sums[e * kVectors + i / kLanes].rounded();
          store(out + i, add ? load(out + i, n) + sum : sum, n);
        });
      }
    });
  });
}

void permute_gradient(const Arguments& args) {
  const std::int64_t top_k = spec::get_int(*args.attributes, "top_k");
  with_any_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    sum_slots<T>(args, args.inputs[0], args.inputs[1].as<const std::int32_t>(), top_k,
                 [](std::int64_t) { return 1.0f; });
  });
}

void unpermute(const Arguments& args) {
  const float* weights = args.inputs[1].as<const float>();
  with_any_float_type(args.inputs[0].type->dtype, [&]<class T>(T*) {
    sum_slots<T>(args, args.inputs[0], args.inputs[2].as<const std::int32_t>(),
                 columns(args.inputs[1]), [=](std::int64_t slot) {
                   const float weight = weights[slot];  // a NaN as store_pair keeps it
                   return weight == weight ? weight : __builtin_nanf("");
                 });
  });
}

void unpermute_gradient(const Arguments& args) {
  const float* weights = args.inputs[2].as<const float>();
  const std::int32_t* slots = args.inputs[3].as<const std::int32_t>();
  const std::int64_t width = columns(args.inputs[1]), top_k = columns(args.inputs[2]);
  const DType of_y = args.inputs[1].type->dtype, of_dout = args.inputs[0].type->dtype;
  with_gradient_types(of_y, of_dout, [&]<class T, class D>(T*, D*) {
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t slot = begin; slot < end; ++slot) {
        const D* dout = args.inputs[0].as<const D>() + slot / top_k * width;
        const T* y = args.inputs[1].as<const T>() + slots[slot] * width;
        D* dy = args.outputs[0].as<D>() + slots[slot] * width;
        const double sum = sum_of_row(width, [&](std::int64_t i, int n, Floats before) {
          const Floats d = load(dout + i, n);
          store(dy + i, weights[slot] * d, n);
          return madd(d, load(y + i, n), before);
        });
        args.outputs[1].as<float>()[slot] = static_cast<float>(sum);
      }
    };
    args.launch.team->for_range(size(args.inputs[3]), row_grain(width), run);
  });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
