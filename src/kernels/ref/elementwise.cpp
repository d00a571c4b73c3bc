// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include "base/philox.h"
#include "kernels/ref/access.h"
#include "kernels/ref/product_prologue.h"
#include "kernels/ref/rows.h"
#include "spec/activation.h"
#include "spec/dropout.h"
#include "tensor/token_scale.h"

namespace anabatic::kernels::ref {
namespace {

std::int64_t checked_row(const TensorView& indices, std::int64_t t, std::int64_t num_rows) {
  const std::int64_t row = load_index(indices, t);
  ANABATIC_REQUIRE(0 <= row && row < num_rows, "[embedding] expected indices in [0, {}), got {}",
                   num_rows, row);
  return row;
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

void add(const Arguments& args) {
  for (std::int64_t i = 0; i < size(args.outputs[0]); ++i)
    store(args.outputs[0], i, load(args.inputs[0], i) + load(args.inputs[1], i));
}

void scale(const Arguments& args) {
  const double factor = spec::get_double(*args.attributes, "factor");
  for (std::int64_t i = 0; i < size(args.outputs[0]); ++i)
    store(args.outputs[0], i, factor * load(args.inputs[0], i));
}

void scale_by(const Arguments& args) {
  const double factor = load(args.inputs[1], 0);
  for (std::int64_t i = 0; i < size(args.outputs[0]); ++i)
    store(args.outputs[0], i, factor * load(args.inputs[0], i));
}

void gate_rows(const Arguments& args) {
  const TensorView &x = args.inputs[0], &gate = args.inputs[1];
  for (std::int64_t i = 0; i < size(x); ++i)
    store(args.outputs[0], i, sigmoid(load(gate, i / columns(x))) * load(x, i));
}

void gate_rows_gradient(const Arguments& args) {
  const TensorView &x = args.inputs[0], &gate = args.inputs[1], &dy = args.inputs[2];
  const std::int64_t width = columns(x);
  for (std::int64_t t = 0; t < rows(x); ++t) {
    const double share = sigmoid(load(gate, t));
    double sum = 0;
    for (std::int64_t i = t * width; i < (t + 1) * width; ++i) {
      const double gradient = load(dy, i);
      sum += gradient * load(x, i);
      store(args.outputs[0], i, share * gradient);
    }
    store(args.outputs[1], t, share * sigmoid(-load(gate, t)) * sum);
  }
}

void clamp(const Arguments& args) {
  const double limit = spec::get_double(*args.attributes, "limit");
  for (std::int64_t i = 0; i < size(args.outputs[0]); ++i) {
    const double x = load(args.inputs[0], i);
    store(args.outputs[0], i, x > limit ? limit : x < -limit ? -limit : x);
  }
}

void clamp_gradient(const Arguments& args) {
  const double limit = spec::get_double(*args.attributes, "limit");
  for (std::int64_t i = 0; i < size(args.outputs[0]); ++i)
    store(args.outputs[0], i,
          std::abs(load(args.inputs[0], i)) <= limit ? load(args.inputs[1], i) : 0.0);
}

// In f32 the product of two floats, rounded once as the kernels round it.
void fake_quantize_tokens(const Arguments& args) {
  const TensorView& x = args.inputs[0];
  const std::int64_t width = columns(x);
  for (std::int64_t first = 0; first < size(x); first += width) {
    float largest = 0;
    for (std::int64_t i = first; i < first + width; ++i) {
      const auto magnitude = static_cast<float>(std::abs(load(x, i)));
      if (!(magnitude <= largest)) largest = magnitude;
      if (std::isnan(largest)) break;
    }
    const TokenScale scale = token_scale(largest);
    for (std::int64_t i = first; i < first + width; ++i) {
      const float step = std::nearbyint(static_cast<float>(load(x, i)) * scale.inverse);
      store(args.outputs[0], i, (step + 0.0f) * scale.scale);  // an integer has no -0
    }
  }
}

void dropout(const Arguments& args) {
  drop_rows(args.inputs[0], args.inputs[1], spec::get_double(*args.attributes, "rate"),
            spec::get_string(*args.attributes, "site"), args.outputs[0]);
}

void fill(const Arguments& args) {
  const auto found = args.attributes->find("value");
  ANABATIC_REQUIRE(found != args.attributes->end(), "[fill] expected 'value' (a number), got none");
  const std::int64_t* integer = std::get_if<std::int64_t>(&found->second);
  const double value = integer != nullptr ? static_cast<double>(*integer)
                                          : spec::get_double(*args.attributes, "value");
  for (std::int64_t i = 0; i < size(args.outputs[0]); ++i) store(args.outputs[0], i, value);
}

void exchange_alone(const Arguments& args) { reload(args); }

void reload(const Arguments& args) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  if (y.data != x.data) std::copy(x.data, x.data + x.type->num_bytes(), y.data);
}

void cast(const Arguments& args) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const bool half_away =
      y.type->dtype == DType::kBFloat16 &&
      spec::get_string(*args.attributes, "rounding") == std::string_view("half_away");
  for (std::int64_t i = 0; i < size(y); ++i) {
    if (half_away)
      y.as<BFloat16>()[i] = to_bfloat16_half_away(static_cast<float>(load(x, i)));
    else
      store(y, i, load(x, i));
  }
}

void pack(const Arguments& args) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  std::memset(y.data, 0, static_cast<std::size_t>(y.type->num_bytes()));
  if (is_int8_panels(*y.type)) return pack_in_int8(args);
  const std::int64_t first_row = spec::get_int_or(*args.attributes, "first_row", 0),
                     first_column = spec::get_int_or(*args.attributes, "first_column", 0),
                     step = spec::get_int_or(*args.attributes, "column_step", 0);
  const std::int64_t width = y.type->dim(-1), matrix = y.type->dim(-2) * width;
  for (std::int64_t i = 0; i < size(y); ++i) {
    const std::int64_t row = i % matrix / width, column = i % width;
    const std::int64_t in_matrix = step > 0 ? column * columns(x) + first_column + row * step
                                            : (first_row + row) * width + column;
    const double value = load(x, i / matrix * x.type->dim(-2) * columns(x) + in_matrix);
    store(y, i,
          y.type->dtype == DType::kBFloat16
              ? to_float(to_bfloat16_half_away(static_cast<float>(value)))
              : value);
  }
}

void cache_write(const Arguments& args) {
  const TensorView &cache = args.inputs[0], &added = args.inputs[1], &out = args.outputs[0];
  if (out.data != cache.data)
    std::memcpy(out.data, cache.data, static_cast<std::size_t>(cache.type->num_bytes()));
  const std::int64_t width = columns(cache);
  for (std::int64_t t = 0; t < rows(added); ++t) {
    const std::int64_t place = load_index(args.inputs[2], t);
    ANABATIC_REQUIRE(place < rows(cache), "[cache_write] expected places below {}, got {}",
                     rows(cache), place);
    for (std::int64_t i = 0; place >= 0 && i < width; ++i)
      store(out, place * width + i, load(added, t * width + i));
  }
}

void embedding(const Arguments& args) {
  const TensorView &table = args.inputs[0], &indices = args.inputs[1];
  const std::int64_t width = columns(table);
  for (std::int64_t t = 0; t < rows(indices); ++t) {
    const std::int64_t row = checked_row(indices, t, rows(table));
    for (std::int64_t h = 0; h < width; ++h)
      store(args.outputs[0], t * width + h, load(table, row * width + h));
  }
}

void embedding_weight_gradient(const Arguments& args) {
  const TensorView &indices = args.inputs[0], &dy = args.inputs[1];
  const std::int64_t width = columns(dy), num_tokens = rows(indices);
  const std::int64_t padding = spec::get_int_or(*args.attributes, "padding", -1);
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const std::int64_t row = checked_row(indices, t, rows(args.outputs[0]));
    bool seen_before = row == padding;
    for (std::int64_t s = 0; s < t && !seen_before; ++s)
      seen_before = load_index(indices, s) == row;
    if (seen_before) continue;
    for (std::int64_t h = 0; h < width; ++h) {
      double sum = 0;
      for (std::int64_t s = t; s < num_tokens; ++s)
        if (load_index(indices, s) == row) sum += load(dy, s * width + h);
      put(args, 0, row * width + h, sum);
    }
  }
}

void sum_rows(const Arguments& args) {
  const TensorView& dy = args.inputs[0];
  const TensorView* offsets = args.inputs.size() > 1 ? &args.inputs[1] : nullptr;
  const std::int64_t width = columns(dy), groups = offsets != nullptr ? rows(*offsets) - 1 : 1;
  for (std::int64_t i = 0; i < groups * width; ++i) {
    const std::int64_t group = i / width,
                       begin = offsets != nullptr ? load_index(*offsets, group) : 0,
                       end = offsets != nullptr ? load_index(*offsets, group + 1) : rows(dy);
    ANABATIC_REQUIRE(0 <= begin && begin <= end && end <= rows(dy),
                     "[sum_rows] expected ascending offsets within {} rows, got [{}, {})", rows(dy),
                     begin, end);
    double sum = 0;
    for (std::int64_t t = begin; t < end; ++t) sum += load(dy, t * width + i % width);
    put(args, 0, i, sum);
  }
}

void activation(const Arguments& args) {
  const spec::Activation activation = spec::activation_of(*args.attributes);
  const auto count = static_cast<std::size_t>(num_operands(activation));
  const std::int64_t width = columns(args.outputs[0]);
  for (std::int64_t i = 0; i < size(args.outputs[0]); ++i) {
    const double gate = load(args.inputs[0], i), up = count > 1 ? load(args.inputs[1], i) : 1;
    const double factor =
        args.inputs.size() > count
            ? load(args.inputs[count + 1], load_index(args.inputs[count], i / width))
            : 1.0;
    store(args.outputs[0], i, factor * evaluate(activation, gate, up).value);
  }
}

void activation_gradient(const Arguments& args) {
  const spec::Activation activation = spec::activation_of(*args.attributes);
  const bool has_up = is_gated(activation);
  for (std::int64_t i = 0; i < size(args.outputs[0]); ++i) {
    const double gate = load(args.inputs[0], i), up = has_up ? load(args.inputs[1], i) : 1,
                 dy = load(args.inputs.back(), i);
    const spec::ActivationPoint at = evaluate(activation, gate, up);
    store(args.outputs[0], i, dy * at.by_gate);
    if (has_up) store(args.outputs[1], i, dy * at.by_up);
  }
}

}  // namespace anabatic::kernels::ref
