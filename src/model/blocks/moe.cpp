// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/blocks.h"

namespace anabatic::model {
namespace {

struct Routing {
  ir::ValueId weights, experts;  // [T, k]
};

Routing add_router(ModelBuilder& b, const Moe& spec, ir::ValueId x, const LayerInputs& inputs,
                   std::vector<RouterOutputs>& routers) {
  const ir::ValueId logits = b.linear(x, {.name = "router",
                                          .file = {"mlp.gate"},
                                          .out = spec.num_experts,
                                          .in = b.spec().hidden_size,
                                          .bias = spec.router.bias,
                                          .bias_init = b.normal(),
                                          .in_flops = false,
                                          .is_saved_in_f32 = spec.router.is_saved_in_f32});
  spec::RouterForm form = spec.router.form;
  form.top_k = spec.top_k;
  std::vector<ir::ValueId> router_inputs{logits};
  if (form.has_bias)
    router_inputs.push_back(b.parameter({.key = kCorrectionBias,
                                         .file = {"mlp.gate.e_score_correction_bias"},
                                         .shape = {spec.num_experts},
                                         .is_trainable = false,
                                         .in_flops = false,
                                         .is_saved_in_f32 = spec.router.is_saved_in_f32}));
  if (inputs.documents != ir::kNoValue) router_inputs.push_back(inputs.documents);
  const auto [weights, experts, probabilities, counts, probability_sums] =
      b.ops<5>("router", std::move(router_inputs), spec::to_attributes(form));
  routers.push_back(
      {.layer = b.layer(),
       .top_k = spec.top_k,
       .chooses_by_softmax = form.score == spec::RouterScore::kSoftmax && form.chooses_by_logits(),
       .logits = logits,
       .probabilities = probabilities,
       .experts = experts,
       .counts = counts,
       .probability_sums = probability_sums});
  return {weights, experts};
}

// What every token gets in addition to its experts.
ir::ValueId add_shared_expert(ModelBuilder& b, const SharedExpert& spec, ir::ValueId x) {
  b.begin("mlp");
  const ir::ValueId rows = add_mlp(b, spec.mlp, x, "shared_expert", "mlp.shared_expert");
  if (!spec.is_gated) return rows;
  const ir::ValueId gate = b.linear(x, {.name = "shared_expert.row_gate",
                                        .file = {"mlp.shared_expert_gate"},
                                        .out = 1,
                                        .in = b.spec().hidden_size});
  return b.op("gate_rows", {rows, gate}, {}, "shared_expert.output");
}

}  // namespace

ir::ValueId add_feed_forward(ModelBuilder& b, const Moe& spec, ir::ValueId x,
                             const LayerInputs& inputs, std::vector<RouterOutputs>& routers) {
  const Routing routing = add_router(b, spec, x, inputs, routers);
  b.begin("dispatch");
  const auto [row_map, slots, offsets] =
      b.ops<3>("route_sort", {routing.experts}, {{"num_experts", spec.num_experts}});
  const ir::ValueId rows = b.op("permute", {x, row_map}, {{"top_k", spec.top_k}}, "experts.input");

  b.begin("experts");
  const std::int64_t hidden = b.spec().hidden_size;
  const auto linear = [&](const char* name, const char* file, std::int64_t out, std::int64_t in) {
    return ExpertLinear{.name = name, .file = {file}, .out = out, .in = in, .experts = &spec};
  };
  ExpertLinear to_gate = linear("experts.gate", "mlp.experts.{}.gate_proj", spec.width, hidden),
               to_up = linear("experts.up", "mlp.experts.{}.up_proj", spec.width, hidden);
  to_gate.bias = to_up.bias = spec.expert_bias;
  const ir::ValueId gate = b.grouped_linear(rows, offsets, to_gate);
  const ir::ValueId up = b.grouped_linear(rows, offsets, to_up);
  const ir::ValueId inner = b.activate(spec.activation, gate, up, "experts.activation");
  const ExpertLinear to_hidden =
      linear("experts.down", "mlp.experts.{}.down_proj", hidden, spec.width);
  const ir::ValueId down = b.grouped_linear(inner, offsets, to_hidden);

  b.begin("combine");
  ir::ValueId output = b.op("unpermute", {down, routing.weights, slots}, {}, "experts.output");
  // The combine is linear: the biases of down are added after it, times the router's weights.
  if (spec.expert_bias)
    output =
        b.op("expert_bias", {output, b.expert_bias(to_hidden), routing.weights, routing.experts},
             {}, "experts.output_with_bias");
  if (!spec.shared) return output;
  return b.op("add", {output, add_shared_expert(b, *spec.shared, x)}, {}, "experts.sum");
}

}  // namespace anabatic::model
