// SPDX-License-Identifier: Apache-2.0
#include "model/layers.h"

namespace anabatic::model {
namespace {

// Names of a kind of block: its first segment, its norm and its residual sum.
struct BlockNames {
  std::string_view segment, norm, norm_file, residual;
};

BlockNames names_of(const Attention&) {
  return {"attention", "attention_norm", "input_layernorm", "attention.residual"};
}

BlockNames names_of(const FeedForward& feed_forward) {
  constexpr const char* kNormFile = "post_attention_layernorm";
  if (std::holds_alternative<Moe>(feed_forward))
    return {"router", "mlp_norm", kNormFile, "experts.residual"};
  return {"mlp", "mlp_norm", kNormFile, "mlp.residual"};
}

// A block with its norm and residual connection.
template <class Block>
ir::ValueId add_block(ModelBuilder& b, NormPlacement placement, const BlockNames& names,
                      ir::ValueId hidden, Block&& block) {
  b.begin(names.segment);
  ir::ValueId result = hidden;
  switch (placement) {
    case NormPlacement::kBefore: {
      const ir::ValueId normed = b.norm(hidden, {.name = names.norm,
                                                 .file = {std::string(names.norm_file)},
                                                 .width = b.spec().hidden_size});
      result = b.op("add", {hidden, block(normed)}, {}, names.residual);
      break;
    }
  }
  return result;
}

ir::ValueId add_layer(ModelBuilder& b, const LayerSpec& layer, ir::ValueId hidden,
                      const LayerInputs& inputs, std::vector<RouterOutputs>& routers) {
  hidden = add_block(b, layer.norms, names_of(layer.attention), hidden, [&](ir::ValueId x) {
    return std::visit([&](const auto& spec) { return add_attention(b, spec, x, inputs); },
                      layer.attention);
  });
  return add_block(b, layer.norms, names_of(layer.feed_forward), hidden, [&](ir::ValueId x) {
    return std::visit(
        [&](const auto& spec) { return add_feed_forward(b, spec, x, inputs, routers); },
        layer.feed_forward);
  });
}

ir::ValueId embedding_weight(ModelBuilder& b) {
  const ModelSpec& spec = b.spec();
  return b.parameter({.key = "embedding.weight",
                      .file = {"model.embed_tokens.weight"},
                      .shape = {spec.vocab_size, spec.hidden_size},
                      .init = {.rule = spec::Init::Rule::kNormal,
                               .deviation = spec.initializer_range,
                               .zero_row = spec.padding_token},
                      .in_flops = false});
}

ir::ValueId add_head(ModelBuilder& b, ir::ValueId hidden, ir::ValueId embedding) {
  const ModelSpec& spec = b.spec();
  b.begin(-1, "head");
  const ir::ValueId normed =
      b.norm(hidden, {.name = "norm", .file = {"model.norm"}, .width = spec.hidden_size});
  if (spec.head.is_tied)
    b.repeat({.tensor = "lm_head.weight", .parameter = "embedding.weight"},
             spec.vocab_size * spec.hidden_size);
  else
    embedding = b.parameter({.key = "head.weight",
                             .file = {"lm_head.weight"},
                             .shape = {spec.vocab_size, spec.hidden_size},
                             .init = b.normal()});
  return b.op("linear", {normed, embedding}, {}, "logits");
}

}  // namespace

ir::ValueId add_model(ModelBuilder& b, LayerInputs inputs, std::vector<RouterOutputs>& routers) {
  const ModelSpec& spec = b.spec();
  b.begin(-1, "embedding");
  const ir::ValueId embedding = embedding_weight(b);
  spec::Attributes padding;
  if (spec.padding_token >= 0) padding["padding"] = spec.padding_token;
  ir::ValueId hidden =
      b.op("embedding", {embedding, inputs.tokens}, std::move(padding), "embedding.output");
  inputs.rope_table =
      b.op("rope_table", {inputs.positions}, spec::to_attributes(spec.rope), "rope_table");
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    b.begin(static_cast<std::int64_t>(i), "");
    hidden = add_layer(b, spec.layers[i], hidden, inputs, routers);
  }
  return add_head(b, hidden, embedding);
}

}  // namespace anabatic::model
