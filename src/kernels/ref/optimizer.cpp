// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/ref/access.h"
#include "kernels/ref/rows.h"
#include "tensor/dynamic_map.h"
#include "tensor/split_float.h"
#include "tensor/stochastic_rounding.h"

namespace anabatic::kernels::ref {

void sum_squares(const Arguments& args) {
  double sum = 0;
  for (std::int64_t i = 0; i < size(args.inputs[0]); ++i)
    sum += load(args.inputs[0], i) * load(args.inputs[0], i);
  store(args.outputs[0], 0, sum);
}

void global_norm(const Arguments& args) {
  double sum = 0;
  for (const TensorView& part : args.inputs) sum += load(part, 0);
  store(args.outputs[0], 0, std::sqrt(sum));
}

void clip_factor(const Arguments& args) {
  const double norm = load(args.inputs[0], 0);
  const double max_norm = spec::get_double(*args.attributes, "max_norm");
  double factor = max_norm == 0 ? 1.0 : std::min(1.0, max_norm / (norm + 1e-6));
  if (!std::isfinite(norm)) factor = std::numeric_limits<double>::quiet_NaN();
  store(args.outputs[0], 0, factor);
}

namespace {

// Moments in bf16 are rounded to one of their two neighbours by 16 bits of the element's word.
struct MomentRounding {
  bool has_stream;
  RoundingKey key{};

  // Element `i` of a moment, `element` of the parameter.
  void put(const TensorView& moment, std::int64_t i, std::int64_t element, double value,
           int half) const {
    if (!has_stream || moment.type->dtype != DType::kBFloat16) return store(moment, i, value);
    const std::uint32_t word = rounding_word(key, static_cast<std::uint32_t>(element));
    moment.as<BFloat16>()[element_offset(*moment.type, i)] = to_bfloat16_stochastic(
        static_cast<float>(value), static_cast<std::uint16_t>(half == 0 ? word : word >> 16));
  }
};

bool is_quantized(const TensorView& moment) { return moment.type->dtype == DType::kUInt8; }

// Where the scale of the i-th element's block is.
std::int64_t block_of(const TensorType& type, std::int64_t i) {
  const std::int64_t width = type.dim(-1), rows = type.dim(-2), row = i / width;
  const std::int64_t down = (rows + kBlockSide - 1) / kBlockSide,
                     across = (width + kBlockSide - 1) / kBlockSide;
  return (row / rows * down + row % rows / kBlockSide) * across + i % width / kBlockSide;
}

template <bool kSigned>
double load_quantized(const TensorView& codes, const TensorView& scales, std::int64_t i) {
  return anabatic::dequantize<kSigned>(static_cast<std::uint8_t>(load(codes, i)),
                                       static_cast<float>(load(scales, block_of(*codes.type, i))));
}

// All values at once: a scale is the largest magnitude of its block.
template <bool kSigned>
void store_quantized(const TensorView& codes, const TensorView& scales,
                     const std::vector<double>& values) {
  std::vector<float> largest(static_cast<std::size_t>(size(scales)));
  for (std::int64_t i = 0; i < size(codes); ++i) {
    float& scale = largest[static_cast<std::size_t>(block_of(*codes.type, i))];
    scale = std::max(scale, std::abs(static_cast<float>(values[static_cast<std::size_t>(i)])));
  }
  for (std::int64_t i = 0; i < size(codes); ++i) {
    const float scale = largest[static_cast<std::size_t>(block_of(*codes.type, i))];
    const auto value = static_cast<float>(values[static_cast<std::size_t>(i)]);
    store(codes, i, anabatic::quantize<kSigned>(value, inverse_scale(scale)));
  }
  for (std::int64_t i = 0; i < size(scales); ++i) {
    const float scale = largest[static_cast<std::size_t>(i)];
    store(scales, i, scale < 0x1.0p-126f ? 0.0f : scale);
  }
}

// Of the rows whose moments and lower halves an update has: all, without the attribute `first_row`.
std::int64_t first_element(const Arguments& args, const TensorView& gradient) {
  const std::int64_t row = spec::get_int_or(*args.attributes, "first_row", 0);
  return row > 0 ? row * gradient.type->dim(-1) : 0;
}

// torch.optim.AdamW: decay first, then the step with bias-corrected moments. `inputs`: gradient,
// moments and scalars; load_parameter(i) and store_parameter(i, value) know the parameter.
template <class Load, class Store>
void update(const Arguments& args, std::span<const TensorView> inputs,
            std::span<const TensorView> moments, Load&& load_parameter, Store&& store_parameter) {
  const TensorView &gradient = inputs[0], &first = inputs[1], &second = inputs[2];
  const double clip = load(inputs[3], 0), learning_rate = load(inputs[4], 0);
  const std::int64_t count = load_index(inputs[5], 0);
  const auto step = static_cast<double>(count);
  const double beta1 = spec::get_double(*args.attributes, "beta1");
  const double beta2 = spec::get_double(*args.attributes, "beta2");
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  const double decay = spec::get_double(*args.attributes, "weight_decay");
  const double correction1 = 1.0 - std::pow(beta1, step);
  const double correction2 = 1.0 - std::pow(beta2, step);
  MomentRounding rounding{.has_stream = args.attributes->contains("stream")};
  if (rounding.has_stream)
    rounding.key = rounding_key(spec::get_int(*args.attributes, "stream"), count);
  const bool quantized = is_quantized(first);
  std::vector<double> all_first, all_second;
  const std::int64_t begin = first_element(args, gradient);
  for (std::int64_t at = 0; at < size(first); ++at) {
    const std::int64_t i = begin + at;
    double p = load_parameter(i);
    double m = quantized ? load_quantized<true>(first, inputs[6], at) : load(first, at);
    double v = quantized ? load_quantized<false>(second, inputs[7], at) : load(second, at);
    if (std::isfinite(clip)) {
      const double g = clip * load(gradient, i);
      m += (1.0 - beta1) * (g - m);
      v = beta2 * v + (1.0 - beta2) * g * g;
      const double denominator = std::sqrt(v) / std::sqrt(correction2) + epsilon;
      p = p * (1.0 - learning_rate * decay) - learning_rate / correction1 * m / denominator;
    }
    store_parameter(i, p);
    if (quantized) {
      all_first.push_back(m);
      all_second.push_back(v);
    } else {
      rounding.put(moments[0], at, i, m, 0);
      rounding.put(moments[1], at, i, v, 1);
    }
  }
  if (!quantized) return;
  const auto scales = args.outputs.last(2);
  if (std::isfinite(clip)) {
    store_quantized<true>(moments[0], scales[0], all_first);
    store_quantized<false>(moments[1], scales[1], all_second);
    return;
  }
  for (std::size_t k = 0; k < 2; ++k) {
    for (std::int64_t i = 0; i < size(first); ++i) store(moments[k], i, load(inputs[1 + k], i));
    for (std::int64_t i = 0; i < size(scales[k]); ++i) store(scales[k], i, load(inputs[6 + k], i));
  }
}

// Of outputs behind the parameter and its moments: without the scales of moments in 8 bits.
std::span<const TensorView> packings(const Arguments& args, std::size_t first) {
  const std::size_t num_scales = is_quantized(args.outputs[first - 1]) ? 2 : 0;
  return args.outputs.subspan(first, args.outputs.size() - num_scales - first);
}

}  // namespace

void adamw(const Arguments& args) {
  update(
      args, args.inputs.subspan(1), args.outputs.subspan(1, 2),
      [&](std::int64_t i) { return load(args.inputs[0], i); },
      [&](std::int64_t i, double value) { store(args.outputs[0], i, value); });
}

void adamw_pack(const Arguments& args) {
  adamw(args);
  for (const TensorView& packed : packings(args, 3))
    pack({.inputs = args.outputs.first(1), .outputs = {&packed, 1}, .attributes = args.attributes});
}

void adamw_pack_transposed(const Arguments& args) { adamw_pack(args); }

// In finite differences `high` is f64 and holds the whole value.
void adamw_split(const Arguments& args) {
  const std::int64_t begin = first_element(args, args.inputs[2]);
  update(
      args, args.inputs.subspan(2), args.outputs.subspan(2, 2),
      [&](std::int64_t i) {
        return merge_float({to_bfloat16(static_cast<float>(load(args.inputs[0], i))),
                            static_cast<std::uint16_t>(load(args.inputs[1], i - begin))});
      },
      [&](std::int64_t i, double value) {
        const SplitFloat halves = split_float(static_cast<float>(value));
        const TensorView& high = args.outputs[0];
        store(high, i, high.type->dtype == DType::kFloat64 ? value : to_float(halves.high));
        store(args.outputs[1], i - begin, halves.low);
      });
}

void adamw_split_pack_transposed(const Arguments& args) {
  adamw_split(args);
  pack({.inputs = args.outputs.first(1),
        .outputs = packings(args, 4),
        .attributes = args.attributes});
}

void adamw_split_slice_pack_transposed(const Arguments& args) {
  adamw_split(args);
  const std::int64_t begin = first_element(args, args.inputs[2]);
  for (std::int64_t i = begin; i < begin + size(args.inputs[1]); ++i)
    store(args.outputs[4], i, load(args.outputs[0], i));
}

}  // namespace anabatic::kernels::ref
