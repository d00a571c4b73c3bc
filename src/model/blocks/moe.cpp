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
                                          .in_flops = false});
  std::vector<ir::ValueId> router_inputs{logits};
  if (inputs.documents != ir::kNoValue) router_inputs.push_back(inputs.documents);
  const auto [weights, experts, probabilities, counts, probability_sums] =
      b.ops<5>("router", std::move(router_inputs),
               {{"normalize", spec.normalizes_weights}, {"top_k", spec.top_k}});
  routers.push_back({.layer = b.layer(),
                     .top_k = spec.top_k,
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
  return add_mlp(b, spec.mlp, x, "shared_expert", "mlp.shared_expert");
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
  const auto linear = [&, offsets = offsets](ir::ValueId input, const char* name, const char* file,
                                             std::int64_t out, std::int64_t in) {
    return b.grouped_linear(input, offsets,
                            {.name = name, .file = {file}, .out = out, .in = in, .experts = &spec});
  };
  const ir::ValueId gate =
      linear(rows, "experts.gate", "mlp.experts.{}.gate_proj.weight", spec.width, hidden);
  const ir::ValueId up =
      linear(rows, "experts.up", "mlp.experts.{}.up_proj.weight", spec.width, hidden);
  const ir::ValueId inner = b.activate(spec.activation, gate, up, "experts.activation");
  const ir::ValueId down =
      linear(inner, "experts.down", "mlp.experts.{}.down_proj.weight", hidden, spec.width);

  b.begin("combine");
  const ir::ValueId output =
      b.op("unpermute", {down, routing.weights, slots}, {}, "experts.output");
  if (!spec.shared) return output;
  return b.op("add", {output, add_shared_expert(b, *spec.shared, x)}, {}, "experts.sum");
}

}  // namespace anabatic::model
