// SPDX-License-Identifier: Apache-2.0
#include "model/initialize.h"

#include <algorithm>

#include "base/error.h"
#include "base/philox.h"

namespace anabatic::model {
void initialize(const ir::State& state, const TensorType& type, std::int64_t first,
                std::span<float> values, std::uint64_t seed) {
  const std::int64_t end = first + static_cast<std::int64_t>(values.size());
  ANABATIC_REQUIRE(0 <= first && end <= type.num_elements(),
                   "[initialize] {}: expected elements within {}, got [{}, {})", text(state.name),
                   type.num_elements(), first, end);
  const spec::Init& init = state.init;
  const std::uint64_t stream = stream_of(text(state.name));
  if (init.rule == spec::Init::Rule::kUniform) {
    for (std::int64_t i = first; i < end; ++i)
      values[static_cast<std::size_t>(i - first)] = static_cast<float>(
          init.deviation * (2 * random_uniform(seed, stream, static_cast<std::uint64_t>(i)) - 1));
    return;
  }
  if (init.rule != spec::Init::Rule::kNormal) {
    const bool is_scaled = init.rule == spec::Init::Rule::kOnes && init.deviation != 0;
    const float one = is_scaled ? static_cast<float>(init.deviation) : 1.0f;
    std::fill(values.begin(), values.end(), init.rule == spec::Init::Rule::kOnes ? one : 0.0f);
    return;
  }
  const std::int64_t width = type.dim(-1);
  const std::int64_t zero_begin = init.zero_row >= 0 ? init.zero_row * width : 0;
  const std::int64_t zero_end = init.zero_row >= 0 ? zero_begin + width : 0;
  for (std::int64_t i = first; i < end; ++i)
    values[static_cast<std::size_t>(i - first)] =
        zero_begin <= i && i < zero_end
            ? 0.0f
            : static_cast<float>(init.deviation *
                                 random_normal(seed, stream, static_cast<std::uint64_t>(i)));
}

}  // namespace anabatic::model
