// SPDX-License-Identifier: Apache-2.0
// A random start by the rules of Hugging Face's initialisers.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "model/model.h"

namespace anabatic::model {

// Fills one parameter: normal(0, initializer_range) for matrices, embeddings, routers and experts
// (the embedding's padding row is 0), ones for norms, zeroes for biases. Each value is a function
// of (seed, state name, element) alone. InvalidArgument when the model has no such parameter or
// `values` has another size.
void initialize(const ModelConfig& config, std::string_view state, std::span<float> values,
                std::uint64_t seed);
// Its elements [first, first + values.size()), row-major.
void initialize(const ModelConfig& config, std::string_view state, std::int64_t first,
                std::span<float> values, std::uint64_t seed);

}  // namespace anabatic::model
