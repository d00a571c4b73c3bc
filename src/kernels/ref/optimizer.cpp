// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <limits>
#include <variant>
#include <vector>

#include "kernels/ref/access.h"
#include "kernels/ref/rows.h"
#include "spec/optimizer_step.h"
#include "spec/shards.h"
#include "tensor/dynamic_map.h"
#include "tensor/panels.h"
#include "tensor/split_float.h"
#include "tensor/stochastic_rounding.h"

namespace anabatic::kernels::ref {

namespace {

// Whether the mask of a weight like `type`, in blocks, has its element i.
bool is_present(const TensorView& mask, spec::SparsityPattern pattern, const TensorType& type,
                std::int64_t i) {
  const std::int64_t rows = type.dim(-2), columns = type.dim(-1), block = spec::mask_block(pattern),
                     row = i / columns,
                     in_mask = row / rows * mask.type->dim(-2) + row % rows / block;
  return load(mask, in_mask * mask.type->dim(-1) + i % columns / block) != 0;
}

}  // namespace

void sum_squares(const Arguments& args) {
  // A product that sums squares has no mask, and no such attribute.
  std::optional<spec::SparsityPattern> mask;
  if (args.inputs.size() > 1) mask = spec::mask_of(*args.attributes);
  double sum = 0;
  for (std::int64_t i = 0; i < size(args.inputs[0]); ++i)
    if (!mask || is_present(args.inputs[1], *mask, *args.inputs[0].type, i))
      sum += load(args.inputs[0], i) * load(args.inputs[0], i);
  store(args.outputs[0], 0, sum);
}

void sum_leaves(const Arguments& args) {
  const TensorType flat =
      tensor_type(args.outputs[0].type->dtype, {stored_elements(*args.outputs[0].type)});
  const TensorView sum{args.outputs[0].data, &flat};
  for (std::int64_t i = 0; i < size(sum); ++i)
    for (std::size_t level = 0; level < args.inputs.size(); ++level)
      store(sum, i, (level > 0 ? load(sum, i) : 0) + load({args.inputs[level].data, &flat}, i));
}

void sum_squares_of_parts(const Arguments& args) {
  const std::int64_t columns = spec::get_int(*args.attributes, "columns"),
                     column = spec::get_int(*args.attributes, "column"),
                     parts = spec::get_int(*args.attributes, "parts"),
                     part = spec::get_int(*args.attributes, "part"),
                     count = spec::get_int(*args.attributes, "count");
  for (std::int64_t g = 0; g < static_cast<std::int64_t>(args.inputs.size()); ++g) {
    const TensorType& type = *args.inputs[static_cast<std::size_t>(g)].type;
    // The stored elements in one row, with the padding of panels.
    const TensorType flat = tensor_type(type.dtype, {stored_elements(type)});
    const TensorView gradient{args.inputs[static_cast<std::size_t>(g)].data, &flat};
    for (std::int64_t c = 0; c < columns; ++c) {
      double sum = 0;
      if (c >= column && c < column + count) {
        const spec::ElementRange own = spec::shard_elements(type, parts, part + c - column);
        for (std::int64_t i = own.begin; i < own.end; ++i)
          sum += load(gradient, i) * load(gradient, i);
      }
      store(args.outputs[0], g * columns + c, sum);
    }
  }
}

void global_norm(const Arguments& args) {
  double sum = 0;
  for (const TensorView& sums : args.inputs)
    for (std::int64_t i = 0; i < size(sums); ++i) sum += load(sums, i);
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

// Stochastic rounding of moments to bf16, by 16 bits of the element's random word.
struct MomentRounding {
  bool has_stream;
  RoundingKey key{};

  // Element `i` of a moment belongs to element `element` of the parameter.
  void put(const TensorView& moment, std::int64_t i, std::int64_t element, double value,
           int half) const {
    if (!has_stream || moment.type->dtype != DType::kBFloat16) return store(moment, i, value);
    const std::uint32_t word = rounding_word(key, static_cast<std::uint32_t>(element));
    moment.as<BFloat16>()[element_offset(*moment.type, i)] = to_bfloat16_stochastic(
        static_cast<float>(value), static_cast<std::uint16_t>(half == 0 ? word : word >> 16));
  }
};

template <bool kSigned>
double load_quantized(const TensorView& moment, std::int64_t i) {
  return anabatic::dequantize<kSigned>(
      static_cast<std::uint8_t>(load(moment, i)),
      static_cast<float>(load_scale(moment, block_of(*moment.type, i))));
}

// All values at once: a scale is the largest magnitude of its block.
template <bool kSigned>
void store_quantized(const TensorView& moment, const std::vector<double>& values) {
  std::vector<float> largest;
  for (std::int64_t i = 0; i < size(moment); ++i) {
    const auto block = static_cast<std::size_t>(block_of(*moment.type, i));
    if (block >= largest.size()) largest.resize(block + 1);
    const auto value = static_cast<float>(values[static_cast<std::size_t>(i)]);
    largest[block] = std::max(largest[block], std::abs(value));
  }
  for (std::int64_t i = 0; i < size(moment); ++i) {
    const float scale = largest[static_cast<std::size_t>(block_of(*moment.type, i))];
    const auto value = static_cast<float>(values[static_cast<std::size_t>(i)]);
    store(moment, i, anabatic::quantize<kSigned>(value, inverse_scale(scale)));
  }
  for (std::size_t i = 0; i < largest.size(); ++i)
    store_scale(moment, static_cast<std::int64_t>(i), largest[i] < 0x1.0p-126f ? 0.0f : largest[i]);
}

// torch.optim.AdamW: decay first, then the step with bias-corrected moments.
class Adamw {
 public:
  Adamw(const spec::Attributes& attributes, double learning_rate, double step)
      : learning_rate_(learning_rate),
        beta1_(spec::get_double(attributes, "beta1")),
        beta2_(spec::get_double(attributes, "beta2")),
        epsilon_(spec::get_double(attributes, "epsilon")),
        decay_(spec::get_double(attributes, "weight_decay")),
        correction1_(1.0 - std::pow(beta1_, step)),
        correction2_(1.0 - std::pow(beta2_, step)) {}

  // Moves parameter p and moments m and v by the gradient g.
  void operator()(double& p, double& m, double& v, double g) const {
    m += (1.0 - beta1_) * (g - m);
    v = beta2_ * v + (1.0 - beta2_) * g * g;
    const double denominator = std::sqrt(v) / std::sqrt(correction2_) + epsilon_;
    p = p * (1.0 - learning_rate_ * decay_) - learning_rate_ / correction1_ * m / denominator;
  }

 private:
  double learning_rate_, beta1_, beta2_, epsilon_, decay_, correction1_, correction2_;
};

// A step allocates nothing, so it is no std::function.
using Rule = std::variant<Adamw>;

Rule rule_of(spec::UpdateRule rule, const spec::Attributes& attributes, double learning_rate,
             double step) {
  switch (rule) {
    case spec::UpdateRule::kAdamw:
      break;
  }
  return Adamw(attributes, learning_rate, step);
}

// The operands of an update, by name.
struct Update {
  const Arguments& args;
  spec::OptimizerStep form = spec::optimizer_step_of(*args.attributes);

  const TensorView& input(std::size_t place) const { return args.inputs[place]; }
  const TensorView& output(std::size_t place) const { return args.outputs[place]; }
  bool is_quantized() const { return input(form.first_moment()).type->is_quantized(); }
  // Elements of the parameter with moments (and lower 16 bits) in this call; begin() is the first.
  std::int64_t size_held() const { return size(input(form.first_moment())); }
  std::int64_t begin() const {
    const TensorType& gradient = *input(form.gradient()).type;
    return form.first_row > 0 ? form.first_row * gradient.dim(-1) : 0;
  }

  // In finite differences the parameter is f64 and holds the whole value.
  double load_parameter(std::int64_t i) const {
    if (!form.is_split) return load(input(0), i);
    return merge_float({to_bfloat16(static_cast<float>(load(input(0), i))),
                        static_cast<std::uint16_t>(load(input(form.low()), i - begin()))});
  }
  void store_parameter(std::int64_t i, double value) const {
    if (!form.is_split) return store(output(0), i, value);
    const SplitFloat halves = split_float(static_cast<float>(value));
    const bool is_whole = output(0).type->dtype == DType::kFloat64;
    store(output(0), i, is_whole ? value : to_float(halves.high));
    store(output(form.low()), i - begin(), halves.low);
  }
  template <bool kSigned>
  double load_moment(std::size_t moment, std::int64_t i) const {
    return is_quantized() ? load_quantized<kSigned>(input(moment), i) : load(input(moment), i);
  }
};

void keep_quantized(const Update& update) {
  const spec::OptimizerStep& form = update.form;
  for (std::size_t k = 0; k < 2; ++k) {
    const TensorView &from = update.input(form.first_moment() + k),
                     &to = update.output(form.new_first_moment() + k);
    if (to.data != from.data)
      std::memcpy(to.data, from.data, static_cast<std::size_t>(from.type->num_bytes()));
  }
}

void update_states(const Update& update) {
  const Arguments& args = update.args;
  const spec::OptimizerStep& form = update.form;
  const double clip = load(update.input(form.clip_factor()), 0);
  const std::int64_t count = load_index(update.input(form.step()), 0);
  const Rule move =
      rule_of(form.rule, *args.attributes, load(update.input(form.learning_rate()), 0),
              static_cast<double>(count));
  MomentRounding rounding{.has_stream = args.attributes->contains("stream")};
  if (rounding.has_stream)
    rounding.key = rounding_key(spec::get_int(*args.attributes, "stream"), count);
  const TensorView &first = update.output(form.new_first_moment()),
                   &second = update.output(form.new_second_moment());
  std::vector<double> all_first, all_second;
  const std::int64_t begin = update.begin(), held = update.size_held();
  for (std::int64_t at = 0; at < held; ++at) {
    const std::int64_t i = begin + at;
    double p = update.load_parameter(i);
    double m = update.load_moment<true>(form.first_moment(), at);
    double v = update.load_moment<false>(form.second_moment(), at);
    if (std::isfinite(clip)) {
      const double g = clip * load(update.input(form.gradient()), i);
      std::visit([&](const auto& by_rule) { by_rule(p, m, v, g); }, move);
    }
    if (form.mask && !is_present(update.input(form.place_of_mask()), *form.mask,
                                 *update.input(form.gradient()).type, i))
      p = m = v = 0;
    update.store_parameter(i, p);
    if (update.is_quantized()) {
      all_first.push_back(m);
      all_second.push_back(v);
    } else {
      rounding.put(first, at, i, m, 0);
      rounding.put(second, at, i, v, 1);
    }
  }
  if (!update.is_quantized()) return;
  if (!std::isfinite(clip)) return keep_quantized(update);
  store_quantized<true>(first, all_first);
  store_quantized<false>(second, all_second);
}

// A slice writes its rows of the packing; any other update packs the whole parameter.
void write_packings(const Update& update) {
  const Arguments& args = update.args;
  const spec::OptimizerStep& form = update.form;
  if (form.writes_rows_of_packing()) {
    for (std::int64_t i = update.begin(); i < update.begin() + update.size_held(); ++i)
      store(update.output(form.first_packing()), i, load(update.output(0), i));
    return;
  }
  const TensorView to_round[] = {args.outputs[0], args.inputs[form.step()]};
  for (std::size_t i = 0; i < form.num_packings(); ++i)
    if (args.attributes->contains("grid"))
      fake_quantize({.inputs = to_round,
                     .outputs = args.outputs.subspan(form.first_packing() + i, 1),
                     .attributes = args.attributes});
    else
      pack({.inputs = args.outputs.first(1),
            .outputs = args.outputs.subspan(form.first_packing() + i, 1),
            .attributes = args.attributes});
}

}  // namespace

void optimizer_step(const Arguments& args) {
  const Update update{args};
  update_states(update);
  write_packings(update);
}

}  // namespace anabatic::kernels::ref
