// SPDX-License-Identifier: Apache-2.0
// Every parameter of a model: state name, shape, how a random start draws it. Graph, weight map,
// initialisation and counts all read this one list.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/model.h"
#include "spec/state.h"

namespace anabatic::model {

enum class ParameterKind : std::uint8_t { kEmbedding, kMatrix, kRouter, kExperts, kNorm, kBias };

struct Parameter {
  std::string name;  // of the state: "layers.3.attention.q.weight"
  std::vector<std::int64_t> shape;
  ParameterKind kind = ParameterKind::kMatrix;
  std::int64_t layer = -1;  // -1 outside layers

  std::int64_t num_elements() const;
};

// A random start by the rules of Hugging Face's initialisers: normal(0, initializer_range) for
// matrices, embeddings (the padding token's row is 0), routers and experts, ones for norms, zeroes
// for biases.
spec::Init init_of(const Parameter& parameter, const ModelConfig& config);

// "layers.3.attention.q.weight" from 3 and "attention.q.weight".
std::string layer_state(std::int64_t layer, std::string_view rest);

// The same without names and without allocation, for counts: `visit(kind, number of elements)`.
void visit_sizes(const ModelConfig& config,
                 const std::function<void(ParameterKind kind, std::int64_t size)>& visit);

// In the order of the forward pass. `head.weight` is absent when embeddings are tied.
std::vector<Parameter> parameters(const ModelConfig& config);
// Those of one layer, in the same order.
std::vector<Parameter> layer_parameters(const ModelConfig& config, std::int64_t layer);

}  // namespace anabatic::model
