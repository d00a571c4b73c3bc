// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"
#include "model/parameters.h"

namespace anabatic::model {

ParameterCounts count_parameters(const ModelConfig& config) {
  ParameterCounts counts;
  visit_sizes(config, [&](ParameterKind kind, std::int64_t size) {
    const std::int64_t active = kind == ParameterKind::kExperts
                                    ? size / config.num_experts * config.num_experts_per_tok
                                    : size;
    counts.total += size;
    counts.active += active;
    if (kind != ParameterKind::kEmbedding && kind != ParameterKind::kRouter)
      counts.active_without_embedding_and_routers += active;
  });
  if (config.tie_word_embeddings)
    counts.active_without_embedding_and_routers += config.vocab_size * config.hidden_size;
  return counts;
}

double training_flops(const ModelConfig& config, std::int64_t tokens,
                      double unmasked_pairs_per_layer) {
  const auto active =
      static_cast<double>(count_parameters(config).active_without_embedding_and_routers);
  const auto widths = static_cast<double>(2 * config.head_dim * config.num_attention_heads);
  return 6.0 * static_cast<double>(tokens) * active +
         7.0 * widths * unmasked_pairs_per_layer * static_cast<double>(config.num_hidden_layers);
}

}  // namespace anabatic::model
