// SPDX-License-Identifier: Apache-2.0
#include "model/model_spec.h"

namespace anabatic::model {

std::int64_t HeadRows::own_row(std::int64_t in_file) const {
  if (rows == 0) return in_file;
  const std::int64_t head = in_file / rows, row = in_file % rows, others = rows - rotated,
                     place = row - others;
  const std::int64_t own = row < others ? rotated + row
                           : in_pairs   ? place % 2 * (rotated / 2) + place / 2
                                        : place;
  return head * rows + own;
}

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
