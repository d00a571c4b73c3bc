// SPDX-License-Identifier: Apache-2.0
// Declarations of a model's builder: every parameter, where it is used, and what counts add up.
// Graph, weight map and counts all read these.
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
  std::int64_t num_chosen = 0;   // experts (of shape[0]) that a token uses; 0: no experts
  bool is_trainable = true;      // false: no gradient and no optimizer
  bool in_flops = true;          // whether model FLOPs count it
  bool is_saved_in_f32 = false;  // as Router's

  std::string name() const;  // of the state: "layers.3.attention.q.weight"
  bool is_per_expert() const { return num_chosen > 0; }
  std::int64_t num_elements() const;
};

// A tensor that files may hold in addition to the parameter that it equals.
struct RepeatedTensor {
  std::string tensor, parameter;  // "lm_head.weight", "embedding.weight"
  bool may_replace = true;        // files may have it instead
};

struct Declarations {
  // In the order of the forward pass. A deque, so that a config of absurd sizes allocates no huge
  // block.
  std::deque<Parameter> parameters{};
  std::vector<RepeatedTensor> repeated{};
  std::int64_t repeated_in_flops = 0;                       // elements that are used once more
  std::map<std::int64_t, std::int64_t> attention_widths{};  // as in ModelCounts
};

// Runs the builder without a graph. Layers of multi-token prediction come last.
Declarations declare(const ModelSpec& spec, bool with_mtp = true);

// "layers.3.attention.q.weight" from 3 and "attention.q.weight". Layer -1 adds no prefix.
std::string state_name(std::int64_t layer, std::string_view key);

// In double, so that absurd sizes cannot overflow.
double count_roughly(const Declarations& declared);
ModelCounts count(const Declarations& declared);

}  // namespace anabatic::model
