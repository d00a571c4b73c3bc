// SPDX-License-Identifier: Apache-2.0
// What the builder of a model declares: every parameter, where it is used, and what counts are made
// from. Graph, weight map and counts all read these.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "model/model.h"
#include "spec/state.h"

namespace anabatic::model {

struct Parameter {
  std::int64_t layer = -1;  // -1 outside layers
  std::string key;          // "attention.q.weight": the name without its layer
  FileView file;
  std::vector<std::int64_t> shape;
  spec::Init init{};
  std::int64_t num_chosen = 0;  // of shape[0] experts, those that a token uses; 0: no experts
  bool in_flops = true;         // false: model FLOPs leave it out

  std::string name() const;  // of the state: "layers.3.attention.q.weight"
  bool is_per_expert() const { return num_chosen > 0; }
  std::int64_t num_elements() const;
};

// A tensor that files may repeat: its values are those of a parameter.
struct RepeatedTensor {
  std::string tensor, parameter;  // "lm_head.weight", "embedding.weight"
};

struct Declarations {
  // In the order of the forward pass. A deque takes no large block where a config has absurd sizes.
  std::deque<Parameter> parameters{};
  std::vector<RepeatedTensor> repeated{};
  std::int64_t repeated_in_flops = 0;                       // elements that are used once more
  std::map<std::int64_t, std::int64_t> attention_widths{};  // as in ModelCounts
};

// Runs the builder without a graph.
Declarations declare(const ModelSpec& spec);

// "layers.3.attention.q.weight" from 3 and "attention.q.weight"; the latter alone from -1.
std::string state_name(std::int64_t layer, std::string_view key);

// In double, so that absurd sizes cannot overflow.
double count_roughly(const Declarations& declared);
ModelCounts count(const Declarations& declared);

}  // namespace anabatic::model
