// SPDX-License-Identifier: Apache-2.0
#include "model/families/latent_attention.h"

#include <fmt/core.h>

#include <cmath>

namespace anabatic::model {
namespace {

// transformers multiplies the softmax scale by mscale², for every rope type but the default.
double scale_of_scores(const spec::Rope& rope, std::int64_t head_dim) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  if (rope.variant == "default" || rope.mscale_all_dim == 0 || rope.factor <= 1) return scale;
  const double mscale = 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1.0;
  return scale * mscale * mscale;
}

}  // namespace

Mla read_latent_attention(ConfigReader& reader, const CommonFields& fields, const spec::Rope& rope,
                          const Mla& defaults, const LatentKeys& keys) {
  constexpr Range kRank{1, Limits::kWidth}, kHead{1, Limits::kHeads};
  Mla mla = defaults;
  mla.num_heads = fields.num_attention_heads;
  mla.rope_dim = fields.head_dim;
  if (fields.num_key_value_heads != fields.num_attention_heads)
    reader.invalid("num_key_value_heads",
                   fmt::format("expected num_attention_heads {}, as latent attention has, got {}",
                               fields.num_attention_heads, fields.num_key_value_heads));
  mla.q_rank = reader.optional_integer(keys.q_rank, defaults.q_rank, kRank).value_or(0);
  mla.kv_rank = reader.integer(keys.kv_rank, defaults.kv_rank, kRank);
  mla.nope_dim = reader.integer(keys.nope_dim, defaults.nope_dim, kHead);
  mla.v_dim = reader.integer(keys.v_dim, defaults.v_dim, kHead);
  mla.scale = scale_of_scores(rope, mla.nope_dim + mla.rope_dim);
  reader.expect("qk_head_dim", mla.nope_dim + mla.rope_dim);
  return mla;
}

}  // namespace anabatic::model
