// SPDX-License-Identifier: Apache-2.0
#include "unit/ops_samples.h"

#include <fmt/core.h>

#include "spec/rope.h"

namespace anabatic::testing {
namespace {

const spec::Attributes kHeads{{"num_heads", 4}, {"num_kv_heads", 2}, {"scale", 0.5}, {"window", 0}};
const spec::Attributes kBalance{{"top_k", 2}};
const spec::Attributes kSwiglu{{"activation", "swiglu"}};
const spec::Attributes kEpsilon{{"epsilon", 1e-6}};
const spec::Attributes kRouterOfGroups{{"normalize", true}, {"top_k", 2},  {"score", "sigmoid"},
                                       {"bias", true},      {"groups", 2}, {"group_top_k", 1},
                                       {"epsilon", 1e-20},  {"scale", 2.5}};

const spec::Attributes kAdamw{
    {"rule", "adamw"}, {"beta1", 0.9}, {"beta2", 0.95}, {"epsilon", 1e-8}, {"weight_decay", 0.1}};

// The attributes of an AdamW update of that form.
spec::Attributes adamw(spec::Attributes form) {
  form.insert(kAdamw.begin(), kAdamw.end());
  return form;
}

// With lists of blocks of three keys.
spec::Attributes with_blocks(spec::Attributes attributes) {
  attributes["block_size"] = 3;
  attributes["block_density"] = 0.5;
  return attributes;
}

spec::Attributes rope_attributes() { return spec::to_attributes(spec::Rope{.rotary_dim = 4}); }

const std::set<std::string, std::less<>> kRouterDefaults{"score",       "bias",    "groups",
                                                         "group_top_k", "epsilon", "scale"};

std::vector<OpSample> make_samples() {
  return {
      {"accumulate", {"w[3,4]", "w[3,4]", "w[3,4]"}, {}},
      {"add", {"x[3,4]", "x[3,4]"}, {}},
      {"add_norm_statistics", {"x[6,8]", "x[6,8]"}, {{"epsilon", 1e-6}, {"norm", "rms"}}, {}},
      {"add_rms_norm", {"x[6,8]", "w[4]", "x[6,8]"}, kEpsilon},
      {"all_gather", {"x[3,4]"}, {{"group", "data"}}},
      {"all_reduce", {"x[3,4]"}, {{"group", "data"}}},
      {"attention", {"x[6,32]", "x[9,16]", "x[9,10]", "i32[6]", "i32[6]"}, kHeads},
      {"attention", {"x[6,32]", "x[9,16]", "x[9,10]", "i32[6]", "i32[6]", "w[4]"}, kHeads},
      {"attention",
       {"x[6,32]", "x[9,16]", "x[9,10]", "i32[6]", "i32[6]", "i32[2,4]", "i32[12]"},
       with_blocks(kHeads),
       {0},
       {"block_density"}},
      {"attention",
       {"x[6,32]", "x[9,16]", "x[9,10]", "i32[6]", "i32[6]", "w[4]", "i32[1,4]", "i32[6]"},
       with_blocks(kHeads),
       {0},
       {"block_density"}},
      {"attention_gradient",
       {"x[6,32]", "x[9,16]", "x[9,10]", "i32[6]", "i32[6]", "x[6,20]", "w[6,4]", "x[6,20]"},
       kHeads},
      {"attention_gradient",
       {"x[6,32]", "x[9,16]", "x[9,10]", "i32[6]", "i32[6]", "x[6,20]", "w[6,4]", "x[6,20]",
        "i32[4,4]", "i32[20]"},
       with_blocks(kHeads),
       {0},
       {"block_density"}},
      {"attention_gradient",
       {"x[6,32]", "x[9,16]", "x[9,10]", "i32[6]", "i32[6]", "x[6,20]", "w[6,4]", "x[6,20]"},
       {{"num_heads", 4}, {"num_kv_heads", 2}, {"scale", 0.5}, {"window", 0}, {"with_delta", true}},
       {0},
       {"with_delta"}},
      {"cache_write", {"x[9,4]", "x[2,4]", "i32[2]"}, {}},
      {"cast", {"x[3,4]"}, {{"dtype", "bf16"}, {"rounding", "even"}}},
      {"clamp", {"x[3,4]"}, {{"limit", 0.5}}},
      {"clamp_gradient", {"x[3,4]", "x[3,4]"}, {{"limit", 0.5}}},
      {"clip_factor", {"f32[]"}, {{"max_norm", 1.0}}},
      {"cross_entropy", {"x[6,11]", "i32[6]", "f32[]"}, {}},
      {"cross_entropy", {"x[6,11]", "i32[6]", "f32[]", "w[6]"}, {}},
      {"cross_entropy_gradient",
       {"x[6,11]", "i32[6]", "f32[]", "w[6]", "f32[]"},
       {{"dtype", "f32"}}},
      {"cross_entropy_gradient",
       {"x[6,11]", "i32[6]", "f32[]", "w[6]", "f32[]", "w[6]"},
       {{"dtype", "f32"}}},
      {"dequantize", {"i8_bf16_1x64[6,70]"}, {{"dtype", "bf16"}}},
      {"dispatch_map", {"i32[2,5]"}, {{"member", 1}, {"rows", 12}, {"expected", 6}}},
      {"dropout", {"x[6,5]", "i32[3]"}, {{"rate", 0.25}, {"site", "mlp"}}},
      {"embedding", {"x[11,4]", "i32[6]"}, {}},
      {"embedding_weight_gradient", {"i32[6]", "x[6,4]"}, {{"rows", 11}}},
      {"expert_bias", {"x[6,5]", "w[3,5]", "w[6,2]", "i32[6,2]"}, {}},
      {"expert_bias_router_gradient", {"x[6,5]", "w[3,5]", "i32[6,2]"}, {}},
      {"expert_bias_weight_gradient", {"x[6,5]", "w[6,2]", "i32[6,2]"}, {{"num_experts", 3}}},
      {"exchange_rows", {"x[6,4]", "i32[2]", "i32[2]"}, {{"group", "expert"}, {"rows", 9}}},
      {"exchange_rows",
       {"x[6,4]", "i32[2]", "i32[2]", "i32[12]"},
       {{"group", "expert"}, {"rows", 9}, {"top_k", 2}},
       {}},
      {"fake_quantize", {"w[20,64]"}, {{"dtype", "bf16"}, {"grid", "q8_0"}, {"layout", "panels"}}},
      {"fake_quantize_tokens", {"x[6,5]"}, {}},
      {"fake_quantize",
       {"w[3,20,64]", "i32[]"},
       {{"delay", 7}, {"dtype", "bf16"}, {"grid", "mxfp4"}, {"layout", "panels_transposed"}}},
      {"fill", {}, {{"type", "f32[3,4]"}, {"value", 0.0}}, {}},
      {"gate_rows", {"x[6,5]", "w[6,1]"}, {}},
      {"gate_rows_gradient", {"x[6,5]", "w[6,1]", "x[6,5]"}, {}},
      {"global_norm", {"f64[]", "f64[]"}, {}},
      {"grouped_linear", {"x[12,8]", "x[3,5,8]", "i32[4]"}, {}},
      {"grouped_linear",
       {"x[12,8]", "x[3,5,8]", "i32[4]", "w[3,5]"},
       {{"bias", true}},
       {0},
       {"bias"}},
      {"grouped_linear_input_gradient", {"x[12,5]", "x[3,5,8]", "i32[4]"}, {}},
      {"grouped_linear_many", {"x[12,8]", "x[3,5,8]", "x[3,2,8]", "i32[4]"}, {}},
      {"grouped_linear_many_input_gradient",
       {"x[12,5]", "x[3,5,8]", "x[12,2]", "x[3,2,8]", "i32[4]"},
       {}},
      {"grouped_linear_many_weight_gradient", {"x[12,8]", "x[12,5]", "x[12,2]", "i32[4]"}, {}},
      {"grouped_linear_activation", {"x[12,8]", "x[3,5,8]", "x[3,5,8]", "i32[4]"}, kSwiglu},
      {"grouped_linear_activation",
       {"x[12,8]", "x[3,5,8]", "x[3,5,8]", "i32[4]", "w[3,5]", "w[3,5]"},
       {{"activation", "swiglu_clamped"}, {"alpha", 1.702}, {"bias", true}, {"limit", 7.0}},
       {0},
       {"alpha", "bias", "limit"}},
      {"grouped_linear_activation_gradient",
       {"x[12,8]", "x[3,8,5]", "i32[4]", "x[12,5]", "x[12,5]"},
       kSwiglu},
      {"grouped_linear_activation_gradient_with_weights",
       {"x[6,8]", "x[3,8,5]", "i32[4]", "x[12,5]", "x[12,5]", "i32[12]", "f32[6,2]"},
       kSwiglu},
      {"grouped_linear_activation_with_codes",
       {"x[12,8]", "x[3,5,8]", "x[3,5,8]", "i32[4]"},
       {{"activation", "swiglu"}, {"block", 64}}},
      {"grouped_linear_activation_with_products",
       {"x[12,8]", "x[3,5,8]", "x[3,5,8]", "i32[4]"},
       kSwiglu},
      {"grouped_linear_weight_gradient", {"x[12,8]", "x[12,5]", "i32[4]"}, {}},
      {"grouped_linear_weight_gradient",
       {"x[12,8]", "x[12,5]", "i32[4]", "w[3,9,8]"},
       {{"first_row", 4}, {"of_rows", 9}},
       {},
       {"first_row", "of_rows"}},
      {"grouped_linear_weight_gradient_squares", {"x[12,8]", "x[12,5]", "i32[4]"}, {}},
      {"grouped_sparse_linear",
       {"x[12,40]", "x[3,2,1024]", "i32[3,5]", "i32[4]"},
       {{"out", 50}, {"pattern", "block32"}}},
      {"grouped_sparse_linear_input_gradient",
       {"x[12,50]", "x[3,2,1024]", "i32[3,5]", "i32[4]"},
       {{"in", 40}, {"pattern", "block32"}}},
      {"grouped_sparse_linear_weight_gradient",
       {"x[12,40]", "x[12,50]", "i32[3,5]", "i32[4]"},
       {{"pattern", "block32"}}},
      {"head_log_probabilities", {"x[6,8]", "x[11,8]", "i32[6]"}, {}},
      {"head_loss", {"x[6,8]", "x[11,8]", "i32[6]", "f32[]"}, {}},
      {"head_loss", {"x[6,8]", "x[11,8]", "i32[6]", "f32[]", "w[6]"}, {}},
      {"head_loss_with_gradient", {"x[6,8]", "x[11,8]", "i32[6]", "f32[]"}, {{"dloss", 1.0}}},
      {"head_loss_with_input_gradient", {"x[6,8]", "x[11,8]", "i32[6]", "f32[]"}, {{"dloss", 1.0}}},
      {"label_log_probabilities", {"x[6,11]", "i32[6]"}, {}},
      {"layer_norm", {"x[6,8]", "w[8]", "w[8]"}, kEpsilon},
      {"layer_norm_input_gradient", {"x[6,8]", "w[8]", "x[6,8]"}, kEpsilon},
      {"layer_norm_weight_gradient", {"x[6,8]", "x[6,8]"}, kEpsilon},
      {"linear", {"x[6,8]", "x[5,8]", "w[5]"}, {}},
      {"linear", {"x[6,8]", "x[5,8]", "w[6,1]", "w[8]"}, {{"norm", "rms"}}, {}},
      {"linear", {"x[6,8]", "x[5,8]", "w[5]", "w[6,2]", "w[8]", "w[8]"}, {{"norm", "layer"}}, {}},
      {"linear_input_gradient", {"x[6,5]", "x[5,8]"}, {{"output_dtype", "f32"}}},
      {"linear_many", {"x[6,8]", "x[5,8]", "x[2,8]"}, {}},
      {"linear_many", {"x[6,8]", "x[5,8]", "x[2,8]", "w[6,1]", "w[8]"}, {{"norm", "rms"}}, {}},
      {"linear_many_input_gradient", {"x[6,5]", "x[5,8]", "x[6,2]", "x[2,8]"}, {}},
      {"linear_many_weight_gradient", {"x[6,8]", "x[6,5]", "x[6,2]"}, {}},
      {"linear_activation", {"x[6,8]", "x[5,8]", "x[5,8]"}, kSwiglu},
      {"linear_activation",
       {"x[6,8]", "x[5,8]", "x[5,8]", "w[6,2]", "w[8]", "w[8]"},
       {{"activation", "swiglu"}, {"norm", "layer"}},
       {}},
      {"linear_activation_gradient", {"x[6,8]", "x[8,5]", "x[6,5]", "x[6,5]"}, kSwiglu},
      {"linear_activation_with_codes",
       {"x[6,8]", "x[5,8]", "x[5,8]"},
       {{"activation", "swiglu"}, {"block", 64}}},
      {"join_heads", {"x[6,4]", "x[6,9]"}, {{"num_heads", 3}}},
      {"join_heads_gradient", {"x[6,21]"}, {{"num_heads", 3}, {"shared", 4}}},
      {"linear_activation_with_products", {"x[6,8]", "x[5,8]", "x[5,8]"}, kSwiglu},
      {"linear_weight_gradient", {"x[6,8]", "x[6,5]"}, {}},
      {"linear_weight_gradient",
       {"x[6,8]", "x[6,5]"},
       {{"first_row", 0}, {"of_rows", 9}},
       {},
       {"first_row", "of_rows"}},
      {"linear_weight_gradient",
       {"x[6,8]", "x[6,5]"},
       {{"output_dtype", "bf16"}},
       {},
       {"output_dtype"}},
      {"linear_weight_gradient", {"x[6,8]", "x[6,5]", "w[6,1]", "w[8]"}, {{"norm", "rms"}}, {}},
      {"linear_weight_gradient_squares", {"x[6,8]", "x[6,5]"}, {}},
      {"linear_weight_gradient_squares",
       {"x[6,8]", "x[6,5]", "w[6,1]", "w[8]"},
       {{"norm", "rms"}},
       {}},
      {"load_balancing_loss", {"w[]", "w[4]", "w[4]", "w[4]", "w[4]"}, kBalance},
      {"load_balancing_loss_gradient", {"w[]", "w[]", "w[4]", "w[4]"}, kBalance},
      {"norm_statistics", {"x[6,8]"}, {{"epsilon", 1e-6}, {"norm", "layer"}}, {}},
      {"optimizer_step", {"w[3]", "w[3]", "w[3]", "w[3]", "f32[]", "f32[]", "i32[]"}, kAdamw},
      {"optimizer_step",
       {"w[20,7]", "w[20,7]", "w[20,7]", "w[20,7]", "f32[]", "f32[]", "i32[]"},
       adamw({{"dtype", "bf16"}, {"packs", "both"}})},
      {"optimizer_step",
       {"f32[20,7]", "f32[20,7]", "f32[20,7]", "f32[20,7]", "f32[]", "f32[]", "i32[]"},
       adamw({{"dtype", "i8_bf16_128x128"}, {"packs", "both"}})},
      {"optimizer_step",
       {"w[20,64]@panels", "w[20,64]@panels", "w[20,64]@panels", "w[20,64]@panels", "f32[]",
        "f32[]", "i32[]"},
       adamw({{"delay", 7}, {"dtype", "bf16"}, {"grid", "q4_0"}, {"packs", "both"}}),
       {0},
       {"delay", "grid"}},
      {"optimizer_step",
       {"w[20,7]@panels", "w[20,7]@panels", "w[20,7]@panels", "w[20,7]@panels", "f32[]", "f32[]",
        "i32[]"},
       adamw({{"dtype", "bf16"}, {"packs", "transposed"}})},
      {"optimizer_step",
       {"bf16[20,7]", "u16[20,7]", "f32[20,7]", "f32[20,7]", "f32[20,7]", "f32[]", "f32[]",
        "i32[]"},
       adamw({{"split", true}})},
      {"optimizer_step",
       {"bf16[20,7]@panels", "u16[20,7]@panels", "f32[20,7]@panels", "bf16[20,7]@panels",
        "bf16[20,7]@panels", "f32[]", "f32[]", "i32[]"},
       adamw({{"packs", "transposed"}, {"split", true}, {"stream", std::int64_t{7}}}),
       {0},
       {"packs"}},
      {"optimizer_step",
       {"bf16[20,7]@panels", "u16[4,7]@panels", "f32[20,7]@panels", "bf16[4,7]@panels",
        "bf16[4,7]@panels", "f32[]", "f32[]", "i32[]", "bf16[20,7]@panels_transposed"},
       adamw({{"first_row", std::int64_t{16}},
              {"packs", "transposed"},
              {"split", true},
              {"stream", std::int64_t{7}}})},
      {"pack", {"x[20,7]"}, {{"dtype", "bf16"}, {"layout", "panels"}}},
      {"pack",
       {"x[3,20,7]"},
       {{"dtype", "bf16"}, {"layout", "panels"}, {"first_row", 6}, {"rows", 14}},
       {},
       {"first_row", "rows"}},
      {"pack_sparse",
       {"w[50,40]", "i32[5]"},
       {{"dtype", "bf16"}, {"kept", 2}, {"pattern", "block32"}, {"transposed", false}}},
      {"permute", {"x[6,4]", "i32[12]"}, {{"top_k", 2}}},
      {"permute_gradient", {"x[12,4]", "i32[12]"}, {{"top_k", 2}}},
      {"preference_loss",
       {"w[6]", "w[6]", "i32[6]", "f32[]"},
       {{"beta", 0.1}, {"loss", "sigmoid"}, {"label_smoothing", 0.25}},
       {},
       {"label_smoothing"}},
      {"quantize", {"x[6,70]"}, {{"block", 64}}, {}},
      {"reduce_scatter", {"x[3,4]"}, {{"group", "data"}}},
      {"reload", {"x[6,4]"}, {}},
      {"reshape", {"x[6,4]"}, {{"width", 8}}},
      {"rms_norm", {"x[6,8]", "w[4]"}, kEpsilon},
      {"rms_norm_input_gradient", {"x[6,8]", "w[4]", "x[6,8]", "x[6,8]"}, kEpsilon},
      {"rms_norm_weight_gradient", {"x[6,8]", "x[6,8]"}, {{"epsilon", 1e-6}, {"width", 4}}},
      {"rope", {"x[6,16]", "f32[6,4]"}, {{"head_dim", 8}, {"inverse", false}}},
      {"rope_pair",
       {"x[6,16]", "x[6,8]", "w[6,4]", "w[8]", "w[8]"},
       {{"epsilon", 1e-6}, {"head_dim", 8}, {"inverse", false}}},
      {"rope_table", {"i32[6]"}, rope_attributes()},
      {"route_sort", {"i32[6,2]"}, {{"num_experts", 3}}},
      {"router", {"w[6,3]", "i32[6]"}, {{"normalize", true}, {"top_k", 2}}, {0, 4}},
      {"router", {"w[6,4]", "w[4]", "i32[6]"}, kRouterOfGroups, {0, 4}, kRouterDefaults},
      {"router_gradient",
       {"w[6,3]", "i32[6,2]", "w[6,2]", "w[6,2]", "w[3]", "i32[6]"},
       {{"normalize", true}}},
      {"router_gradient",
       {"w[6,3]", "i32[6,2]", "w[6,2]", "w[6,2]", "w[6,3]"},
       {{"normalize", true}, {"score", "sigmoid"}, {"epsilon", 1e-20}, {"scale", 2.5}},
       {0},
       kRouterDefaults},
      {"router_z_loss", {"w[6,3]", "i32[6]", "w[]"}, {}},
      {"router_z_loss_gradient", {"w[6,3]", "w[]", "i32[6]", "w[]"}, {}},
      {"scale", {"x[3,4]"}, {{"factor", 0.5}}},
      {"scale_by", {"x[3,4]", "w[]"}, {}},
      {"sequence_balance_loss", {"w[]", "w[6,3]", "i32[6,2]", "i32[6]"}, {}},
      {"sequence_balance_loss_gradient",
       {"w[]", "w[]", "i32[6,2]", "i32[6]"},
       {{"num_experts", 3}}},
      {"sinks_gradient", {"w[6,4]", "w[6,4]", "w[4]"}, {}},
      {"sparse_index",
       {"u8[2,2]"},
       {{"columns", 40}, {"kept", 2}, {"pattern", "block32"}, {"rows", 50}, {"transposed", true}}},
      {"sparse_linear",
       {"x[6,40]", "x[2,1024]", "i32[5]", "w[50]"},
       {{"out", 50}, {"pattern", "block32"}}},
      {"sparse_linear_input_gradient",
       {"x[6,50]", "x[3,256]", "i32[7]"},
       {{"in", 40}, {"pattern", "block16"}}},
      {"sparse_linear_weight_gradient",
       {"x[6,40]", "x[6,50]", "i32[53]"},
       {{"pattern", "unstructured"}}},
      {"sum_leaves", {"w[3,4]", "w[3,4]", "w[3,4]"}, {{"leaves", 4}}},
      {"sum_rows", {"x[6,5]"}, {}},
      {"sum_rows", {"x[6,5]", "i32[4]"}, {}},
      {"sum_squares", {"w[3,4]"}, {}},
      {"sum_squares_of_parts",
       {"w[3,4]", "w[5]"},
       {{"columns", 4}, {"column", 1}, {"parts", 2}, {"part", 0}, {"count", 2}}},
      {"activation", {"x[6,8]", "x[6,8]"}, kSwiglu},
      {"activation_gradient", {"x[6,8]", "x[6,8]", "x[6,8]"}, kSwiglu},
      {"unpermute", {"x[12,4]", "w[6,2]", "i32[12]"}, {}},
      {"unpermute_gradient", {"x[6,4]", "x[12,4]", "w[6,2]", "i32[12]"}, {}},
  };
}

}  // namespace

const std::vector<OpSample>& op_samples() {
  static const std::vector<OpSample> samples = make_samples();
  return samples;
}

std::vector<TensorType> sample_types(const OpSample& sample, DType storage) {
  const DType wide = storage == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  std::vector<TensorType> types;
  for (std::string type : sample.inputs) {
    if (type[0] == 'x') type = std::string(to_string(storage)) + type.substr(1);
    if (type[0] == 'w') type = std::string(to_string(wide)) + type.substr(1);
    types.push_back(parse_tensor_type(type));
  }
  return types;
}

ir::NodeId add_sample(ir::GraphBuilder& builder, const OpSample& sample, DType storage) {
  std::vector<ir::ValueId> inputs;
  for (const TensorType& type : sample_types(sample, storage))
    inputs.push_back(builder.batch_input(fmt::format("input.{}", inputs.size()), type));
  if (sample.op == "permute" || sample.op == "permute_gradient") {
    const std::int64_t top_k = spec::get_int(sample.attributes, "top_k");
    const TensorType experts =
        tensor_type(DType::kInt32, {builder.type(inputs[1]).dim(0) / top_k, top_k});
    inputs[1] = builder.add("route_sort", {builder.batch_input("experts", experts)},
                            {{"num_experts", 3}})[sample.op == "permute" ? 0 : 1];
  }
  builder.add(sample.op, inputs, sample.attributes);
  return static_cast<ir::NodeId>(builder.graph().nodes.size() - 1);
}

}  // namespace anabatic::testing
