// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention in config.json, as DeepSeek and its relatives write it.
#pragma once
#include "model/family.h"

namespace anabatic::model {

struct LatentKeys {
  const char *q_rank = "q_lora_rank", *kv_rank = "kv_lora_rank";
  const char *nope_dim = "qk_nope_head_dim", *v_dim = "v_head_dim";
};

// Without biases. `defaults`: ranks and widths of heads. The rotated width is fields.head_dim.
Mla read_latent_attention(ConfigReader& reader, const CommonFields& fields, const spec::Rope& rope,
                          const Mla& defaults, const LatentKeys& keys = {});

}  // namespace anabatic::model
