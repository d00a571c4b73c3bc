// SPDX-License-Identifier: Apache-2.0
// How the tensors of an adapter lie in PEFT's files: the modules of transformers that they belong
// to, and the order of the rows of B.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/lora/adapter.h"
#include "model/weights.h"

namespace anabatic::model {

inline constexpr const char* kPeftPrefix = "base_model.model.";

// The place of a row of a file's B among the weights of a tensor.
struct AdapterRow {
  std::size_t weight = 0;  // of AdaptableTensor::weights
  std::int64_t row = 0;    // of that weight; of a stack: counted through all experts
};
// In the order of the file, expert by expert: heads with rotated rows in pairs, rows in turn.
std::vector<AdapterRow> adapter_rows(const FileTensor& tensor, const AdaptableTensor& weights);

// A module, or a parameter of one, with its adapter. `target` is what adapter_config.json calls it:
// "model.layers.0.self_attn.q_proj", or "model.layers.0.mlp.experts.gate_up_proj".
struct PeftModule {
  std::string target;
  bool is_parameter = false;  // listed under target_parameters
  // Its tensors: STEM.lora_A.weight, STEM.lora_B.weight, or peft_ends().
  std::string stem;
  const AdaptableTensor* tensor = nullptr;
  std::vector<const AdapterGroup*> groups;  // one, or those of gate and up

  std::int64_t rank() const;         // those of the groups add up: B is block-diagonal
  double alpha() const;              // with which PEFT scales as the groups do
  std::int64_t num_experts() const;  // 1: no stack
  std::int64_t rows() const;         // of B
};
// Those of an adapter. `tensors` are those of the model, and outlive the result.
std::vector<PeftModule> peft_modules(const ModelConfig& config, const Adapter& adapter,
                                     const std::vector<AdaptableTensor>& tensors);

// What PEFT calls the tensor's module or parameter. Weights of MLPs in models with experts are
// parameters: PEFT rewrites targets that are named as projections of experts.
std::string peft_target(const ModelConfig& config, const AdaptableTensor& tensor,
                        bool& is_parameter);
// What names of the tensors of A and B end in.
struct PeftEnds {
  const char *a, *b;
};
PeftEnds peft_ends(AdapterKind kind);

// STEM of its tensors. `is_inner`: the module has another parameter with an adapter, which wraps
// this one.
std::string peft_stem(const AdaptableTensor& tensor, bool is_inner);

// A tensor of the file: its name and shape, and the module whose values it holds.
struct PeftTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  const PeftModule* module = nullptr;
  bool is_a = false;
};
std::vector<PeftTensor> peft_tensors(const std::vector<PeftModule>& modules);
// The values of such a tensor, from the states of the groups, or from gradients of them.
std::vector<float> peft_values(const PeftTensor& tensor, const WeightMap& map,
                               const StateReader& read);
// The weights of the model under the names that modules of transformers have.
WeightMap module_map(const ModelConfig& config);

}  // namespace anabatic::model
