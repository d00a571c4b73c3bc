// SPDX-License-Identifier: Apache-2.0
#include "model/model_spec.h"

namespace anabatic::model {

const Moe* first_moe(const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers)
    if (const auto* moe = std::get_if<Moe>(&layer.feed_forward)) return moe;
  return nullptr;
}

std::int64_t num_experts(const ModelSpec& spec) {
  const Moe* moe = first_moe(spec);
  return moe != nullptr ? moe->num_experts : 0;
}

}  // namespace anabatic::model
