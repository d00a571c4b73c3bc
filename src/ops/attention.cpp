// SPDX-License-Identifier: Apache-2.0
#include "ops/attention.h"

#include <algorithm>
#include <string>

#include "ops/build.h"
#include "ops/check.h"
#include "ops/elementwise/dropout.h"
#include "spec/dropout.h"
#include "spec/key_blocks.h"

namespace anabatic::ops {
namespace {

void check_attention_inputs(const Check& check) {
  const Operand q = check.floating(0, "q", 2), k = check.floating(1, "k", 2),
                v = check.floating(2, "v", 2);
  const Operand begin = check.i32(3, "key_begin", 1), end = check.i32(4, "key_end", 1);
  check.same_dtype(q, k);
  check.same_dtype(q, v);
  check.same_dim(k, 0, v, 0);
  check.same_dim(begin, 0, q, 0);
  check.same_dim(end, 0, q, 0);
  const std::int64_t heads = check.positive_int("num_heads"),
                     kv_heads = check.positive_int("num_kv_heads");
  if (heads % kv_heads != 0)
    check.fail("expected num_heads to be a multiple of num_kv_heads, got " + std::to_string(heads) +
               " and " + std::to_string(kv_heads));
  check.multiple(q, 1, heads, "num_heads");
  check.multiple(k, 1, kv_heads, "num_kv_heads");
  check.multiple(v, 1, kv_heads, "num_kv_heads");
  if (q.size(1) / heads != k.size(1) / kv_heads)
    check.fail("expected one head size of q and k, got " + std::to_string(q.size(1) / heads) +
               " and " + std::to_string(k.size(1) / kv_heads));
  check.number("scale");
  check.non_negative_int("window");
}

// The lists of key blocks, which are the last two inputs where block_size is there. `num_others`
// inputs come before them.
void check_key_blocks(const Check& check, int num_others) {
  const int num_lists = check.num_inputs() - num_others;
  if (!check.has(spec::kBlockSize)) {
    if (num_lists > 0) check.fail("expected 'block_size' with lists of key blocks, got none");
    if (check.has(spec::kBlockDensity))
      check.fail("expected no 'block_density' without 'block_size'");
    return;
  }
  check.positive_int(spec::kBlockSize);
  if (num_lists != 2)
    check.fail("expected block_offsets and block_ids as the last inputs with 'block_size', got " +
               std::to_string(num_lists) + " of them");
  const Operand offsets = check.i32(num_others, "block_offsets", 2);
  check.i32(num_others + 1, "block_ids", 1);
  const std::int64_t heads = check.positive_int("num_heads"), groups = offsets.size(0);
  if (groups < 1 || heads % groups != 0)
    check.fail("expected num_heads to be a multiple of dimension 0 of block_offsets, got " +
               std::to_string(heads) + " and " + std::to_string(groups));
  if (offsets.size(1) < 1)
    check.fail("expected block_offsets of blocks + 1 columns, got " + to_string(*offsets.type));
  if (!check.has(spec::kBlockDensity)) return;
  if (const double density = check.number(spec::kBlockDensity); !(density > 0 && density <= 1))
    check.fail("expected 'block_density' in (0, 1], got " + std::to_string(density));
}

bool has_draws(const spec::Attributes& attributes) {
  return attributes.contains(spec::kDropoutRate);
}

// The draws of dropout, the input before the lists where dropout_rate is there. `num_others`
// inputs come before them.
void check_dropout(const Check& check, int num_others) {
  if (!check.has(spec::kDropoutRate)) {
    if (check.has(spec::kDropoutSite)) check.fail("expected no 'dropout_site' without a rate");
    return;
  }
  check_dropout_rate(check, spec::kDropoutRate);
  if (check.num_inputs() <= num_others)
    check.fail("expected dropout_draws as an input with 'dropout_rate', got none");
  check.string(spec::kDropoutSite);
  check.size(check.i32(num_others, "dropout_draws", 1), 0, spec::kNumDropoutDraws);
}

TensorType out_type(ir::Types inputs, const spec::Attributes& attributes) {
  const std::int64_t head_size = inputs[2].dim(1) / spec::get_int(attributes, "num_kv_heads");
  return typed(inputs[0].dtype,
               {inputs[0].shape[0], product({head_size, spec::get_int(attributes, "num_heads")})});
}

TensorType lse_type(ir::Types inputs, const spec::Attributes& attributes) {
  return typed(wide_dtype(inputs[0].dtype),
               {inputs[0].shape[0], spec::get_int(attributes, "num_heads")});
}

// Input 5 of attention, where it is there. Draws and two lists follow.
constexpr std::size_t kSinks = 5;

bool has_sinks(std::size_t num_inputs, const spec::Attributes& attributes) {
  const std::size_t others =
      (has_draws(attributes) ? 1 : 0) + (attributes.contains(spec::kBlockSize) ? 2 : 0);
  return num_inputs == kSinks + 1 + others;
}

std::vector<TensorType> infer_attention(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check(
      "attention", inputs, attributes, {"num_heads", "num_kv_heads", "scale", "window"},
      {spec::kBlockSize, spec::kBlockDensity, spec::kDropoutRate, spec::kDropoutSite});
  check_attention_inputs(check);
  const bool with_sinks = has_sinks(inputs.size(), attributes);
  const int num_others = static_cast<int>(kSinks) + (with_sinks ? 1 : 0);
  check_dropout(check, num_others);
  check_key_blocks(check, num_others + (has_draws(attributes) ? 1 : 0));
  if (with_sinks)
    check.size(check.wide(kSinks, "sinks", 1), 0, spec::get_int(attributes, "num_heads"));
  return {out_type(inputs, attributes), lse_type(inputs, attributes)};
}

std::vector<TensorType> infer_attention_gradient(ir::Types inputs,
                                                 const spec::Attributes& attributes) {
  const Check check("attention_gradient", inputs, attributes,
                    {"num_heads", "num_kv_heads", "scale", "window"},
                    {"slices", "with_delta", spec::kBlockSize, spec::kBlockDensity,
                     spec::kDropoutRate, spec::kDropoutSite});
  check_attention_inputs(check);
  check_dropout(check, 8);
  check_key_blocks(check, 8 + (has_draws(attributes) ? 1 : 0));
  check.slices();
  const TensorType want_out = out_type(inputs, attributes), want_lse = lse_type(inputs, attributes);
  const Operand expected_out{.name = "the output of attention", .type = &want_out},
      expected_lse{.name = "the lse of attention", .type = &want_lse};
  check.same_type(check.floating(5, "out", 2), expected_out);
  check.same_type(check.wide(6, "lse", 2), expected_lse);
  const Operand dout = check.floating(7, "dout", 2);
  check.gradient_of(dout, expected_out);
  std::vector<TensorType> outputs;
  for (std::size_t i = 0; i < 3; ++i) outputs.push_back(with_dtype(inputs[i], dout.dtype()));
  if (check.has("with_delta") && check.flag("with_delta")) outputs.push_back(want_lse);
  return outputs;
}

std::vector<TensorType> infer_sinks_gradient(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("sinks_gradient", inputs, attributes);
  const Operand delta = check.wide(0, "delta", 2), sinks = check.wide(2, "sinks", 1);
  check.same_type(check.wide(1, "lse", 2), delta);
  check.same_dim(sinks, 0, delta, 1);
  return {*sinks.type};
}

ir::Gradients attention_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                                 OutputGradients of_outputs) {
  require_no_gradient(node, of_outputs, 1, "lse");
  if (!of_outputs[0]) return ir::Gradients(node.inputs.size());
  const bool with_sinks = has_sinks(node.inputs.size(), node.attributes);
  std::vector<ir::ValueId> inputs(node.inputs.begin(), node.inputs.begin() + kSinks);
  inputs.insert(inputs.end(), {node.outputs[0], node.outputs[1], *of_outputs[0]});
  inputs.insert(inputs.end(), node.inputs.begin() + kSinks + (with_sinks ? 1 : 0),
                node.inputs.end());
  spec::Attributes attributes = node.attributes;
  if (with_sinks) attributes["with_delta"] = true;
  const auto d = builder.add("attention_gradient", std::move(inputs), std::move(attributes));
  ir::Gradients gradients(node.inputs.size());
  std::copy(d.begin(), d.begin() + 3, gradients.begin());
  if (!with_sinks) return gradients;
  const WeightPhase phase(builder);
  gradients[kSinks] = builder.add1("sinks_gradient", {d[3], node.outputs[1], node.inputs[kSinks]});
  return gradients;
}

// Unmasked (row, key) pairs of one head, estimated from shapes alone: the T rows are the last of S
// keys, causal, in one document; a window caps each row. Lists of key blocks leave as many of them
// as block_density says.
std::int64_t estimated_pairs(ir::Types inputs, const spec::Attributes& attributes) {
  const std::int64_t rows = inputs[0].dim(0), keys = inputs[1].dim(0);
  const std::int64_t causal =
      rows <= keys ? product({rows, keys}) - product({rows, rows - 1}) / 2 : product({rows, keys});
  const std::int64_t window = spec::get_int(attributes, "window");
  const std::int64_t dense = window > 0 ? std::min(causal, product({rows, window})) : causal;
  const double density = spec::get_double_or(attributes, spec::kBlockDensity, 1.0);
  return density < 1 ? static_cast<std::int64_t>(density * static_cast<double>(dense)) : dense;
}

// Two products a pair: with Dqk and with Dv.
ir::Cost attention_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes& attributes) {
  const std::int64_t widths = inputs[0].dim(1) + outputs[0].dim(1);
  return streaming_cost(inputs, outputs, product({2, widths, estimated_pairs(inputs, attributes)}));
}

// Five products a pair: scores again, dq and dk with Dqk; dv and the gradient of weights with Dv.
ir::Cost attention_gradient_cost(ir::Types inputs, ir::Types outputs,
                                 const spec::Attributes& attributes) {
  const std::int64_t widths = 3 * inputs[0].dim(1) + 2 * inputs[5].dim(1);
  return streaming_cost(inputs, outputs, product({2, widths, estimated_pairs(inputs, attributes)}));
}

// A difference, an exponential, a product and a sum for each row and head.
ir::Cost sinks_gradient_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, product({4, inputs[0].num_elements()}));
}

}  // namespace

const ir::OpSchema kAttention{
    .name = "attention",
    .min_inputs = 5,
    .max_inputs = 9,
    .num_outputs = 2,
    .signature =
        "(q [T,Hq*Dqk], k [S,Hkv*Dqk], v [S,Hkv*Dv], key_begin i32[T], key_end i32[T], "
        "sinks? f32[Hq], dropout_draws? i32[3], block_offsets? i32[G,B+1], block_ids? i32[N]) -> "
        "out [T,Hq*Dv], lse f32[T,Hq]",
    .infer = infer_attention,
    .gradient = attention_gradient,
    .cost = attention_cost};

const ir::OpSchema kAttentionGradient{
    .name = "attention_gradient",
    .min_inputs = 8,
    .max_inputs = 11,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(q, k, v, key_begin, key_end, out, lse, dout, dropout_draws?, block_offsets?, block_ids?) "
        "-> dq, dk, dv, delta? f32[T,Hq]",
    .infer = infer_attention_gradient,
    .cost = attention_gradient_cost,
    .most_slices = [](ir::Types, const spec::Attributes& attributes) {
      return spec::get_int(attributes, "num_kv_heads");
    }};

const ir::OpSchema kSinksGradient{
    .name = "sinks_gradient",
    .min_inputs = 3,
    .max_inputs = 3,
    .signature = "(delta f32[T,Hq], lse f32[T,Hq], sinks f32[Hq]) -> f32[Hq]",
    .infer = infer_sinks_gradient,
    .cost = sinks_gradient_cost,
    .can_accumulate = true};

}  // namespace anabatic::ops
