// SPDX-License-Identifier: Apache-2.0
#include "model/declarations.h"

#include <fmt/core.h>

#include "model/layers.h"
#include "model/lora/adapter.h"
#include "model/mtp.h"

namespace anabatic::model {

std::string state_name(std::int64_t layer, std::string_view key) {
  return layer < 0 ? std::string(key) : fmt::format("layers.{}.{}", layer, key);
}

std::string Parameter::name() const { return state_name(layer, key); }

std::int64_t Parameter::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

Declarations declare(const ModelSpec& spec, bool with_mtp) {
  Declarations declared;
  ModelBuilder builder(spec, declared);
  std::vector<RouterOutputs> routers;
  const ModelValues values = add_model(builder, {}, routers);
  if (with_mtp) add_mtp(builder, {}, std::vector<MtpInputs>(spec.mtp.size()), values, routers);
  return declared;
}

double count_roughly(const Declarations& declared) {
  double total = 0;
  for (const Parameter& parameter : declared.parameters) {
    double count = 1;
    for (const std::int64_t size : parameter.shape) count *= static_cast<double>(size);
    total += count;
  }
  return total;
}

ModelCounts count(const Declarations& declared) {
  ModelCounts counts{.active_without_embedding_and_routers = declared.repeated_in_flops,
                     .attention_widths = declared.attention_widths};
  for (const Parameter& parameter : declared.parameters) {
    const std::int64_t size = parameter.num_elements();
    const std::int64_t active =
        parameter.is_per_expert() ? size / parameter.shape[0] * parameter.num_chosen : size;
    counts.total += size;
    counts.active += active;
    if (parameter.in_flops) counts.active_without_embedding_and_routers += active;
  }
  return counts;
}

double training_flops_a_weight(const ModelConfig& config) { return config.adapter ? 4.0 : 6.0; }

double training_flops(const ModelConfig& config, std::int64_t tokens,
                      const std::function<double(std::int64_t window)>& unmasked_pairs) {
  const ModelCounts& counts = config.counts;
  double flops = training_flops_a_weight(config) * static_cast<double>(tokens) *
                 static_cast<double>(counts.active_without_embedding_and_routers);
  if (config.adapter)
    for (const AdapterGroup& group : config.adapter->groups) {
      const Moe* moe = group.num_experts > 0 ? first_moe(config.spec) : nullptr;
      const double times = moe == nullptr ? 1.0 : static_cast<double>(moe->top_k);
      flops +=
          6.0 * static_cast<double>(tokens) * times * static_cast<double>(group.num_multiplied());
    }
  for (const auto& [window, widths] : counts.attention_widths)
    flops += 7.0 * static_cast<double>(widths) * unmasked_pairs(window);
  return flops;
}

}  // namespace anabatic::model
