// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: the frequencies of each Hugging Face variant.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "spec/attributes.h"

namespace anabatic::spec {

// The parameters of transformers' `modeling_rope_utils`. Fields that a variant does not use keep
// their defaults.
struct Rope {
  std::string variant = "default";  // default, linear, dynamic, yarn, llama3
  std::int64_t rotary_dim = 0;      // even; the width of one head that rotates
  double theta = 10000.0;
  double factor = 1.0;
  std::int64_t max_position = 0;           // max_position_embeddings (dynamic, yarn)
  std::int64_t original_max_position = 0;  // original_max_position_embeddings (yarn, llama3)
  double attention_factor = -1.0;          // yarn; negative: derive it
  double beta_fast = 32.0, beta_slow = 1.0;
  double mscale = 0.0, mscale_all_dim = 0.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;
  bool truncate = true;
  bool operator==(const Rope&) const = default;
};

Attributes to_attributes(const Rope& rope);
Rope rope_from_attributes(
    const Attributes& attributes);  // InvalidArgument on a missing or mistyped field

struct RopeFrequencies {
  std::vector<float> inverse;  // [rotary_dim / 2], fp32 as transformers holds them
  float scale = 1.0f;          // multiplies both cosine and sine (yarn's attention factor)
};

// `length` is 1 + the largest position of the batch: only `dynamic` looks at it. InvalidArgument
// for an unknown variant.
RopeFrequencies rope_frequencies(const Rope& rope, std::int64_t length);

// Those from `first` on, as many as there is room for. Returns the scale. Allocates nothing.
float fill_rope_frequencies(const Rope& rope, std::int64_t length, std::int64_t first,
                            std::span<float> inverse);

}  // namespace anabatic::spec
