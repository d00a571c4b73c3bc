// SPDX-License-Identifier: Apache-2.0
#include "model/layers.h"

namespace anabatic::model {
namespace {

// Names of a kind of block: its first segment, its norms before and after, its dropout and residual
// sum.
struct BlockNames {
  std::string_view segment;
  Norm before, after;
  std::string_view dropout, residual;
};

BlockNames names_of(const Attention&, NormPlacement) {
  return {.segment = "attention",
          .before = {.name = "attention_norm", .file = {"input_layernorm"}},
          .after = {.name = "attention_post_norm", .file = {"post_attention_layernorm"}},
          .dropout = "attention.dropout",
          .residual = "attention.residual"};
}

// Files call the second norm of a layer post_attention_layernorm, whatever it is.
BlockNames names_of(const FeedForward& feed_forward, NormPlacement placement) {
  const char* before =
      placement == NormPlacement::kBoth ? "pre_feedforward_layernorm" : "post_attention_layernorm";
  const bool is_moe = std::holds_alternative<Moe>(feed_forward);
  return {.segment = is_moe ? "router" : "mlp",
          .before = {.name = "mlp_norm", .file = {before}},
          .after = {.name = "mlp_post_norm", .file = {"post_feedforward_layernorm"}},
          .dropout = is_moe ? "experts.dropout" : "mlp.dropout",
          .residual = is_moe ? "experts.residual" : "mlp.residual"};
}

ir::ValueId scaled(ModelBuilder& b, ir::ValueId x, double factor, std::string_view name) {
  return factor == 1 ? x : b.op("scale", {x}, {{"factor", factor}}, name);
}

// A block with its norms and residual connection.
template <class Block>
ir::ValueId add_block(ModelBuilder& b, NormPlacement placement, BlockNames names,
                      ir::ValueId hidden, Block&& block) {
  b.begin(names.segment);
  names.before.width = names.after.width = b.spec().hidden_size;
  names.after.start = b.spec().post_norm_start;
  ir::ValueId x = hidden;
  if (placement != NormPlacement::kAfter) x = b.norm(x, names.before);
  x = block(x);
  if (placement != NormPlacement::kBefore) x = b.norm(x, names.after);
  x = scaled(b, x, b.spec().residual_multiplier, {});
  x = b.dropout(x, b.dropout_rates().residual, names.dropout);
  return b.op("add", {hidden, x}, {}, names.residual);
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

ir::ValueId head_weight(ModelBuilder& b, ir::ValueId embedding) {
  const ModelSpec& spec = b.spec();
  if (!spec.head.is_tied)
    return b.parameter({.key = "head.weight",
                        .file = {"lm_head.weight"},
                        .shape = {spec.vocab_size, spec.hidden_size},
                        .init = b.normal()});
  b.repeat({.tensor = "lm_head.weight", .parameter = "embedding.weight"},
           spec.vocab_size * spec.hidden_size);
  return embedding;
}

// What a token's position in its document adds to its embedding.
ir::ValueId add_positions(ModelBuilder& b, ir::ValueId hidden, ir::ValueId positions) {
  const ModelSpec& spec = b.spec();
  const ir::ValueId table = b.parameter({.key = "position_embedding.weight",
                                         .file = {"model.embed_positions.weight"},
                                         .shape = {spec.learned_positions, spec.hidden_size},
                                         .init = b.normal(),
                                         .in_flops = false});
  const ir::ValueId rows = b.op("embedding", {table, positions}, {}, "position_embedding.output");
  return b.op("add", {hidden, rows}, {}, "embedding.sum");
}

}  // namespace

ir::ValueId add_embedding(ModelBuilder& b, ir::ValueId weight, ir::ValueId tokens) {
  const ModelSpec& spec = b.spec();
  spec::Attributes padding;
  if (spec.padding_token >= 0) padding["padding"] = spec.padding_token;
  const ir::ValueId rows =
      b.op("embedding", {weight, tokens}, std::move(padding), "embedding.output");
  return scaled(b, rows, spec.embedding_multiplier, "embedding.scaled");
}

ir::ValueId add_layer(ModelBuilder& b, const LayerSpec& layer, ir::ValueId hidden,
                      const LayerInputs& inputs, std::vector<RouterOutputs>& routers) {
  hidden =
      add_block(b, layer.norms, names_of(layer.attention, layer.norms), hidden, [&](ir::ValueId x) {
        return std::visit([&](const auto& spec) { return add_attention(b, spec, x, inputs); },
                          layer.attention);
      });
  return add_block(
      b, layer.norms, names_of(layer.feed_forward, layer.norms), hidden, [&](ir::ValueId x) {
        return std::visit(
            [&](const auto& spec) { return add_feed_forward(b, spec, x, inputs, routers); },
            layer.feed_forward);
      });
}

// Rows are scaled rather than logits, which are many more.
ir::ValueId add_logits(ModelBuilder& b, ir::ValueId hidden, ir::ValueId head_weight) {
  const ir::ValueId rows = scaled(b, hidden, 1 / b.spec().logits_divisor, "norm.scaled");
  std::vector<ir::ValueId> inputs{rows, head_weight};
  if (b.spec().head.bias)
    inputs.push_back(b.parameter(
        {.key = "head.bias", .file = {"lm_head.bias"}, .shape = {b.spec().vocab_size}}));
  return b.op("linear", std::move(inputs), {}, "logits");
}

ModelValues add_model(ModelBuilder& b, LayerInputs inputs, std::vector<RouterOutputs>& routers) {
  const ModelSpec& spec = b.spec();
  ModelValues values;
  b.begin(-1, "embedding");
  values.embedding_weight = embedding_weight(b);
  ir::ValueId hidden = add_embedding(b, values.embedding_weight, inputs.tokens);
  if (spec.learned_positions > 0)
    hidden = add_positions(b, hidden, inputs.positions);
  else
    values.rope_table = inputs.rope_table =
        b.op("rope_table", {inputs.positions}, spec::to_attributes(spec.rope), "rope_table");
  hidden = b.dropout(hidden, b.dropout_rates().embedding, "embedding.dropout");
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    b.begin(static_cast<std::int64_t>(i), "");
    hidden = add_layer(b, spec.layers[i], hidden, inputs, routers);
  }
  b.begin(-1, "head");
  values.hidden =
      b.norm(hidden, {.name = "norm", .file = {"model.norm"}, .width = spec.hidden_size});
  values.head_weight = head_weight(b, values.embedding_weight);
  values.logits = add_logits(b, values.hidden, values.head_weight);
  return values;
}

}  // namespace anabatic::model
