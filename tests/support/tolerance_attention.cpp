// SPDX-License-Identifier: Apache-2.0
// Bounds of attention. With s = scale·q·k and δ = γ_D·scale·Σ|q||k| the error of a score,
// p = exp(s - lse) has relative error of at most 2δ (numerator and denominator) plus γ of the sum.
#include <algorithm>
#include <cmath>

#include "spec/dropout.h"
#include "spec/key_blocks.h"
#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

constexpr double kFunction = 8.0;
constexpr double kU = 0x1.0p-24;

// Relative error ε of a row's exp. Where p becomes a bf16 pair, a polynomial of degree three does.
// p = e^(s - m)(1 + ε_s) / Σ e^(s' - m)(1 + ε_s') is then off by 2ε, log of the sum by ε, and a p
// that comes by lse by ε.
double exponential_error(std::string_view row) { return is_coarser(row) ? 0x1.0p-13 : 0.0; }

double g(double num_operations) { return 2 * gamma(num_operations, DType::kFloat32); }

// A sum over keys or rows goes by tiles; even pieces have at least half of the smallest.
double tiled_roundings(std::int64_t num_terms) {
  constexpr double kMostOfTile = 256, kLeastPiece = 48;
  const auto terms = static_cast<double>(num_terms);
  return std::min(terms, kMostOfTile) + std::ceil(terms / kLeastPiece);
}

struct Shape {
  std::int64_t num_heads, num_kv_heads, key_width, value_width, num_rows, num_keys, window;
  std::int64_t block_size;  // 0: no lists of key blocks
  double signed_scale, scale, dropout_rate;
  std::uint64_t first_stream = 0;  // of dropout's draws

  explicit Shape(const OpCall& call)
      : num_heads(spec::get_int(call.attributes, "num_heads")),
        num_kv_heads(spec::get_int(call.attributes, "num_kv_heads")),
        key_width(call.inputs[0].type.dim(1) / num_heads),
        value_width(call.inputs[2].type.dim(1) / num_kv_heads),
        num_rows(call.inputs[0].type.dim(0)),
        num_keys(call.inputs[1].type.dim(0)),
        window(spec::get_int_or(call.attributes, "window", 0)),
        block_size(spec::get_int_or(call.attributes, spec::kBlockSize, 0)),
        signed_scale(spec::get_double(call.attributes, "scale")),
        scale(std::abs(signed_scale)),
        dropout_rate(spec::get_double_or(call.attributes, spec::kDropoutRate, 0)) {
    if (dropout_rate > 0)
      first_stream = stream_of(spec::get_string(call.attributes, spec::kDropoutSite));
  }
};

double at(const Values& values, std::int64_t i) { return values.data[static_cast<std::size_t>(i)]; }

// Whether the lists of key blocks, the last two inputs where there are any, have a pair.
bool is_listed(const OpCall& call, const Shape& shape, std::int64_t t, std::int64_t h,
               std::int64_t s) {
  const std::int64_t size = shape.block_size;
  if (size == 0) return true;
  const Values &offsets = call.inputs[call.inputs.size() - 2],
               &ids = call.inputs[call.inputs.size() - 1];
  const auto document = static_cast<std::int64_t>(at(call.inputs[3], t)),
             place = static_cast<std::int64_t>(at(call.inputs[4], t)) - 1 - document;
  const std::int64_t list =
      h * offsets.type.dim(0) / shape.num_heads * offsets.type.dim(1) + place / size;
  const auto begin = ids.data.begin() + static_cast<std::ptrdiff_t>(at(offsets, list)),
             end = ids.data.begin() + static_cast<std::ptrdiff_t>(at(offsets, list + 1));
  return std::find(begin, end, static_cast<double>((s - document) / size)) != end;
}

// What dropout multiplies a probability by.
double kept(const OpCall& call, const Shape& shape, std::int64_t t, std::int64_t h,
            std::int64_t s) {
  const double rate = shape.dropout_rate;
  if (rate == 0) return 1;
  const std::size_t num_lists = shape.block_size > 0 ? 2 : 0;
  const Values& draws = call.inputs[call.inputs.size() - num_lists - 1];
  const auto draw = [&](int i) {
    return static_cast<std::uint32_t>(static_cast<std::int64_t>(at(draws, i)));
  };
  const std::int64_t bits =
      spec::dropout_bits({draw(spec::kDropoutKeyLow), draw(spec::kDropoutKeyHigh)},
                         shape.first_stream + static_cast<std::uint64_t>(h),
                         draw(spec::kDropoutRow) + static_cast<std::uint32_t>(t),
                         s - static_cast<std::int64_t>(at(call.inputs[3], t)));
  return bits >= spec::dropout_threshold(rate) ? spec::dropout_scale(rate) : 0;
}

// Calls body(row, head, key, kv head, |score|'s terms, score) for every pair.
template <class Body>
void for_pairs(const OpCall& call, const Shape& shape, Body&& body) {
  const Values &q = call.inputs[0], &k = call.inputs[1];
  for (std::int64_t t = 0; t < shape.num_rows; ++t)
    for (std::int64_t h = 0; h < shape.num_heads; ++h) {
      const std::int64_t kv = h * shape.num_kv_heads / shape.num_heads;
      const auto end = static_cast<std::int64_t>(at(call.inputs[4], t));
      auto begin = static_cast<std::int64_t>(at(call.inputs[3], t));
      if (shape.window > 0) begin = std::max(begin, end - shape.window);
      for (std::int64_t s = begin; s < end; ++s) {
        if (!is_listed(call, shape, t, h, s)) continue;
        double score = 0, magnitude = 0;
        for (std::int64_t d = 0; d < shape.key_width; ++d) {
          const double product = at(q, (t * shape.num_heads + h) * shape.key_width + d) *
                                 at(k, (s * shape.num_kv_heads + kv) * shape.key_width + d);
          score += product;
          magnitude += std::abs(product);
        }
        body(t, h, s, kv, shape.scale * magnitude, shape.signed_scale * score);
      }
    }
}

std::vector<Bound> forward_bounds(const OpCall& call, std::span<const Values> wants,
                                  double exponential) {
  const Shape shape(call);
  std::vector<Bound> bounds{{.errors = std::vector<double>(wants[0].data.size(), 0.0)},
                            {.errors = std::vector<double>(wants[1].data.size(), 0.0)}};
  std::vector<double>& lse_errors = bounds[1].errors;
  // The largest error of a row's scores first: it reaches every p through the sum.
  for_pairs(call, shape, [&](auto t, auto h, auto, auto, double magnitude, double score) {
    double& error = lse_errors[static_cast<std::size_t>(t * shape.num_heads + h)];
    error =
        std::max(error, g(blocked_roundings(static_cast<double>(shape.key_width)) + 2) * magnitude +
                            4 * kU * (std::abs(score) + 1));
  });
  // A bf16 product rounds p to bf16 first.
  const double operand = unit_roundoff(call.inputs[0].type.dtype) + 2 * exponential;
  const double sum = g(tiled_roundings(shape.num_keys) + 2 * kFunction);
  for_pairs(call, shape, [&](auto t, auto h, auto s, auto kv, double, double score) {
    const auto row = static_cast<std::size_t>(t * shape.num_heads + h);
    const double p = std::exp(score - wants[1].data[row]);
    const double error =
        2 * lse_errors[row] + sum + operand + 4 * kU * std::abs(wants[1].data[row]);
    const double share = kept(call, shape, t, h, s);
    for (std::int64_t d = 0; d < shape.value_width; ++d)
      bounds[0].errors[row * static_cast<std::size_t>(shape.value_width) +
                       static_cast<std::size_t>(d)] +=
          error * p * share *
          std::abs(at(call.inputs[2], (s * shape.num_kv_heads + kv) * shape.value_width + d));
  });
  for (std::size_t i = 0; i < lse_errors.size(); ++i)
    if (std::isfinite(wants[1].data[i]))
      lse_errors[i] += sum + exponential + 4 * kU * std::abs(wants[1].data[i]);
  return bounds;
}

// ds = p·(dp - dout·out): both differences taken as sums of absolute products; a bf16 product
// rounds p and ds to bf16 first.
std::vector<Bound> gradient_bounds(const OpCall& call, double exponential) {
  const Shape shape(call);
  std::vector<Bound> bounds(call.outputs.size());
  for (std::size_t i = 0; i < 3; ++i) bounds[i].errors.assign(call.inputs[i].data.size(), 0.0);
  const Values &out = call.inputs[5], &lse = call.inputs[6], &dout = call.inputs[7];
  for (std::size_t i = 0; bounds.size() > 3 && i < out.data.size(); ++i) {
    std::vector<double>& delta = bounds[3].errors;
    const auto width = static_cast<std::size_t>(shape.value_width);
    if (i % width == 0) delta.push_back(0);
    delta.back() +=
        g(row_roundings(static_cast<double>(width))) * std::abs(out.data[i] * dout.data[i]);
  }
  const double operand = 2 * unit_roundoff(call.inputs[0].type.dtype) + exponential;
  // dq sums over keys, dk and dv over the rows of all heads that share them.
  const double sums =
      g(blocked_roundings(static_cast<double>(shape.key_width)) +
        blocked_roundings(static_cast<double>(shape.value_width)) +
        std::max(tiled_roundings(shape.num_keys),
                 tiled_roundings(shape.num_rows * shape.num_heads / shape.num_kv_heads)) +
        16);
  for_pairs(call, shape, [&](auto t, auto h, auto s, auto kv, double magnitude, double score) {
    const std::int64_t row = t * shape.num_heads + h, key = s * shape.num_kv_heads + kv;
    const double p = std::exp(score - at(lse, row));
    const double error =
        g(blocked_roundings(static_cast<double>(shape.key_width)) + 2) * magnitude + sums +
        operand + 4 * kU * (std::abs(score) + std::abs(at(lse, row)) + 1);
    const double share = kept(call, shape, t, h, s);
    double terms = 0;
    for (std::int64_t d = 0; d < shape.value_width; ++d) {
      const double o = std::abs(at(dout, row * shape.value_width + d));
      terms += o * (share * std::abs(at(call.inputs[2], key * shape.value_width + d)) +
                    std::abs(at(out, row * shape.value_width + d)));
      bounds[2].errors[static_cast<std::size_t>(key * shape.value_width + d)] +=
          error * p * share * o;
    }
    const double ds = error * shape.scale * p * terms;
    for (std::int64_t d = 0; d < shape.key_width; ++d) {
      const std::int64_t query_at = row * shape.key_width + d, key_at = key * shape.key_width + d;
      bounds[0].errors[static_cast<std::size_t>(query_at)] +=
          ds * std::abs(at(call.inputs[1], key_at));
      bounds[1].errors[static_cast<std::size_t>(key_at)] +=
          ds * std::abs(at(call.inputs[0], query_at));
    }
  });
  return bounds;
}

// A term is an exponential times delta; at most 64 of them go to one f32 sum, then to double.
std::vector<Bound> sinks_gradient_bounds(const OpCall& call) {
  const Values &delta = call.inputs[0], &lse = call.inputs[1], &sinks = call.inputs[2];
  const std::size_t num_heads = sinks.data.size();
  Bound bound{.errors = std::vector<double>(num_heads, 0.0)};
  const double sum = g(std::min(static_cast<double>(delta.type.dim(0)), 64.0) + kFunction + 2);
  for (std::size_t i = 0; i < delta.data.size(); ++i) {
    const double exponent = sinks.data[i % num_heads] - lse.data[i];
    bound.errors[i % num_heads] +=
        (sum + 2 * kU * (std::abs(exponent) + 1)) * std::exp(exponent) * std::abs(delta.data[i]);
  }
  return {bound};
}

}  // namespace

bool is_coarser(std::string_view row) { return row.ends_with("_avx512_bf16"); }

std::vector<Bound> attention_bounds(const OpCall& call, std::span<const Values> wants,
                                    std::string_view row) {
  if (call.op == "sinks_gradient") return sinks_gradient_bounds(call);
  const double exponential = exponential_error(row);
  return call.op == "attention" ? forward_bounds(call, wants, exponential)
                                : gradient_bounds(call, exponential);
}

}  // namespace anabatic::testing
