// SPDX-License-Identifier: Apache-2.0
#include "plugin/check/kernel_forms.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <variant>

#include "base/error.h"
#include "base/philox.h"
#include "spec/activation.h"

namespace anabatic::plugin::check {
namespace {

using spec::Attributes;
using Text = std::string;

// Operands are NAME:TYPE[DIMS], separated by spaces; an integer may end in =FILL, or in <DIM for
// values below that size. D is f32 or bf16, the same one for all of a call.
struct Row {
  std::string_view op, inputs;
  Attributes attributes{};
};

const Attributes kEpsilon{{"epsilon", 1e-5}};

Attributes heads_of(std::int64_t window) {
  return {{"num_heads", std::int64_t{4}},
          {"num_kv_heads", std::int64_t{2}},
          {"scale", 0.25},
          {"window", window}};
}

Attributes rotation(bool inverse) { return {{"head_dim", std::int64_t{16}}, {"inverse", inverse}}; }

const std::vector<Row>& rows() {
  static const std::vector<Row> all{
      {"add", "a:D[R,F] b:D[R,F]"},
      {"add_rms_norm", "x:D[R,F] weight:f32[F] residual:D[R,F]", kEpsilon},
      {"attention", "q:D[T,32] k:D[T,16] v:D[T,16] key_begin:i32[T] key_end:i32[T]=ends",
       heads_of(0)},
      {"attention", "q:D[T,32] k:D[T,16] v:D[T,16] key_begin:i32[T] key_end:i32[T]=ends",
       heads_of(5)},
      {"cast", "x:f32[R,F]", {{"dtype", Text("bf16")}, {"rounding", Text("even")}}},
      {"cast", "x:bf16[R,F]", {{"dtype", Text("f32")}, {"rounding", Text("even")}}},
      {"clamp", "x:D[R,F]", {{"limit", 0.5}}},
      {"clamp_gradient", "x:D[R,F] dy:D[R,F]", {{"limit", 0.5}}},
      {"cross_entropy", "logits:D[R,V] labels:i32[R]<V scale:f32[]"},
      {"embedding", "table:D[V,F] ids:i32[R]<V"},
      {"embedding_weight_gradient", "ids:i32[R]<33 dy:D[R,F]", {{"rows", std::int64_t{33}}}},
      {"gate_rows", "x:D[R,F] gate:f32[R,1]"},
      {"gate_rows_gradient", "x:D[R,F] gate:f32[R,1] dy:D[R,F]"},
      {"grouped_linear", "x:D[R,K] weight:D[4,N,K] offsets:i32[5]=offsets"},
      {"grouped_linear_input_gradient", "dy:D[R,N] weight:D[4,N,K] offsets:i32[5]=offsets"},
      {"grouped_linear_weight_gradient", "x:D[R,K] dy:D[R,N] offsets:i32[5]=offsets"},
      {"layer_norm", "x:D[R,F] weight:f32[F] bias:f32[F]", kEpsilon},
      {"layer_norm_input_gradient", "x:D[R,F] weight:f32[F] dy:D[R,F]", kEpsilon},
      {"layer_norm_weight_gradient", "x:D[R,F] dy:D[R,F]", kEpsilon},
      {"linear", "x:D[R,K] weight:D[N,K]"},
      {"linear", "x:D[R,K] weight:D[N,K] bias:f32[N]"},
      {"linear_input_gradient", "dy:D[R,N] weight:D[N,K]", {{"output_dtype", Text("$D")}}},
      {"linear_weight_gradient", "x:D[R,K] dy:D[R,N]"},
      {"permute", "x:D[7,F] map:i32[14]=permutation", {{"top_k", std::int64_t{2}}}},
      {"permute_gradient", "dy:D[14,F] map:i32[14]=permutation", {{"top_k", std::int64_t{2}}}},
      {"rms_norm", "x:D[R,F] weight:f32[F]", kEpsilon},
      {"rms_norm", "x:D[R,48] weight:f32[16]", kEpsilon},
      {"rms_norm_input_gradient", "x:D[R,F] weight:f32[F] dy:D[R,F]", kEpsilon},
      {"rms_norm_weight_gradient",
       "x:D[R,F] dy:D[R,F]",
       {{"epsilon", 1e-5}, {"width", Text("$F")}}},
      {"rope", "x:D[R,48] table:f32[R,16]", rotation(false)},
      {"rope", "x:D[R,48] table:f32[R,16]", rotation(true)},
      {"rope_pair", "q:D[R,48] k:D[R,16] table:f32[R,16]", rotation(false)},
      {"rope_pair", "q:D[R,48] k:D[R,16] table:f32[R,16]", rotation(true)},
      {"route_sort", "index:i32[R,2]=experts", {{"num_experts", std::int64_t{8}}}},
      {"router", "logits:f32[R,8]", {{"top_k", std::int64_t{2}}, {"normalize", true}}},
      {"router", "logits:f32[R,8]", {{"top_k", std::int64_t{2}}, {"normalize", false}}},
      {"scale", "x:D[R,F]", {{"factor", 0.375}}},
      {"scale_by", "x:D[R,F] factor:f32[]"},
      {"sum_rows", "x:D[R,F]"},
      {"sum_squares", "x:f32[R,F]"},
      {"unpermute", "y:D[14,F] weights:f32[7,2] map:i32[14]=permutation"},
      {"unpermute_gradient", "dy:D[7,F] y:D[14,F] weights:f32[7,2] map:i32[14]=permutation"},
  };
  return all;
}

// Ops with the attribute `activation`, by their operands with a gate and without.
struct ActivationOp {
  std::string_view op, gated, single;
};
constexpr ActivationOp kActivationOps[] = {
    {"activation", "gate:D[R,F] up:D[R,F]", "x:D[R,F]"},
    {"activation_gradient", "gate:D[R,F] up:D[R,F] dy:D[R,F]", "x:D[R,F] dy:D[R,F]"},
    {"grouped_linear_activation", "x:D[R,K] gate:D[4,N,K] up:D[4,N,K] offsets:i32[5]=offsets",
     "x:D[R,K] weight:D[4,N,K] offsets:i32[5]=offsets"},
    {"linear_activation", "x:D[R,K] gate:D[N,K] up:D[N,K]", "x:D[R,K] weight:D[N,K]"},
};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::uint32_t dtypes_of(std::string_view word) {
  if (word == "D") return ANABATIC_DTYPE_BIT(ANABATIC_F32) | ANABATIC_DTYPE_BIT(ANABATIC_BF16);
  if (word == "f32") return ANABATIC_DTYPE_BIT(ANABATIC_F32);
  if (word == "bf16") return ANABATIC_DTYPE_BIT(ANABATIC_BF16);
  ANABATIC_CHECK(word == "i32", "[check-op] unknown dtype {}", word);
  return ANABATIC_DTYPE_BIT(ANABATIC_I32);
}

Fill fill_of(std::string_view word) {
  if (word == "offsets") return Fill::kOffsets;
  if (word == "permutation") return Fill::kPermutation;
  if (word == "ends") return Fill::kRowEnds;
  ANABATIC_CHECK(word == "experts", "[check-op] unknown fill {}", word);
  return Fill::kExperts;
}

KernelForm parsed(std::string_view inputs, const Attributes& attributes) {
  KernelForm form{.attributes = attributes};
  for (const std::string_view operand : split(inputs, ' ')) {
    const std::size_t colon = operand.find(':'), open = operand.find('['),
                      close = operand.find(']');
    const std::string_view dims = operand.substr(open + 1, close - open - 1),
                           rest = operand.substr(close + 1);
    OperandSpec spec{.name = std::string(operand.substr(0, colon)),
                     .dtypes = dtypes_of(operand.substr(colon + 1, open - colon - 1))};
    for (const std::string_view dim : split(dims, ',')) spec.shape.emplace_back(dim);
    if (rest.starts_with('<')) spec.below = rest.substr(1);
    form.fills.push_back(rest.starts_with('=') ? fill_of(rest.substr(1)) : Fill::kPlain);
    form.inputs.push_back(std::move(spec));
  }
  return form;
}

void fill(Operand& operand, Fill how, std::int64_t num_rows, std::uint64_t seed) {
  const std::int64_t count = operand.type.num_elements();
  const auto set = [&](std::int64_t i, std::int64_t value) {
    set_value(operand, i, static_cast<double>(value));
  };
  const auto below = [&](std::int64_t i, std::int64_t limit) {
    return static_cast<std::int64_t>(random_below(seed, 1 << 20, static_cast<std::uint64_t>(i),
                                                  static_cast<std::uint64_t>(limit)));
  };
  switch (how) {
    case Fill::kPlain:
      return;
    case Fill::kOffsets:
      for (std::int64_t i = 0; i < count; ++i)
        set(i, (i == 2 ? 1 : i) * num_rows / std::max<std::int64_t>(1, count - 1));
      return;
    case Fill::kPermutation: {
      std::vector<std::int64_t> places(static_cast<std::size_t>(count));
      std::iota(places.begin(), places.end(), 0);
      for (std::int64_t i = count; i-- > 1;)
        std::swap(places[static_cast<std::size_t>(i)],
                  places[static_cast<std::size_t>(below(i, i + 1))]);
      for (std::int64_t i = 0; i < count; ++i) set(i, places[static_cast<std::size_t>(i)]);
      return;
    }
    case Fill::kRowEnds:
      for (std::int64_t i = 0; i < count; ++i) set(i, i + 1);
      return;
    case Fill::kExperts: {
      constexpr std::int64_t kExperts = 8;
      const std::int64_t top_k = operand.type.dim(-1);
      for (std::int64_t i = 0; i < count; ++i)
        set(i, (below(i / top_k, kExperts) + 3 * (i % top_k)) % kExperts);
      return;
    }
  }
}

}  // namespace

std::vector<KernelForm> forms_of(std::string_view op) {
  std::vector<KernelForm> forms;
  for (const Row& row : rows())
    if (row.op == op) forms.push_back(parsed(row.inputs, row.attributes));
  for (const ActivationOp& row : kActivationOps)
    if (row.op == op)
      for (const spec::ActivationRow& activation : spec::activation_rows())
        forms.push_back(parsed(activation.is_gated ? row.gated : row.single,
                               {{"activation", std::string(activation.name)}}));
  return forms;
}

spec::Attributes attributes_of(const KernelForm& form, const Case& one) {
  spec::Attributes attributes = form.attributes;
  for (auto& [key, value] : attributes)
    if (const auto* word = std::get_if<std::string>(&value); word && word->starts_with('$')) {
      if (*word == "$D")
        value = std::string(to_string(one.dtype));
      else
        value = size_of(word->substr(1), one);
    }
  return attributes;
}

std::optional<Operands> inputs_of(const KernelForm& form, const Case& one, std::uint64_t seed) {
  std::optional<Operands> inputs = random_inputs(form.inputs, one, seed);
  if (!inputs) return inputs;
  for (std::size_t i = 0; i < inputs->size(); ++i) {
    const TensorType& first = inputs->front().type;
    fill((*inputs)[i], form.fills[i], first.ndim() > 0 ? first.dim(0) : 0, seed);
  }
  return inputs;
}

}  // namespace anabatic::plugin::check
