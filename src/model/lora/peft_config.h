// SPDX-License-Identifier: Apache-2.0
// adapter_config.json, as PEFT writes and reads it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/regex.h"
#include "model/lora/peft_layout.h"

namespace anabatic::model {

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterStem = "adapter_model";  // .safetensors

// A number for the modules and parameters that a regular expression takes.
struct PeftPattern {
  std::string text;  // as the file has it
  std::shared_ptr<const io::tokenizer::Regex> expression;
  double value = 0;
};

struct PeftConfig {
  std::int64_t rank = 0;
  double alpha = 0;
  bool divides_by_root = false;
  std::vector<PeftPattern> ranks, alphas;
  std::vector<std::string> target_modules, target_parameters;
  bool lists_modules = false;    // target_modules is a list of names
  bool leaves_some_out = false;  // layers or modules that the names would meet
  double dropout = 0;
  std::string version;  // of PEFT

  // That of a module or parameter, by its name: "model.layers.0.self_attn.q_proj".
  std::int64_t rank_of(const std::string& target) const;
  double alpha_of(const std::string& target) const;
};

// InvalidArgument for what is no such file; Unsupported names what PEFT does and this does not:
// DoRA, biases, whole modules, and every setting that is not known.
PeftConfig read_peft_config(const std::filesystem::path& directory);
// The same of its text; `place` begins messages.
PeftConfig parse_peft_config(std::string_view text, const std::string& place);

// Experts with a module each, in files of transformers 4: "gate_proj", ..., and one of their
// adapters, which are all of one rank.
struct NumberedExperts {
  std::vector<std::string> modules;
  const AdapterGroup* group = nullptr;  // null: there are none
};

// The text of the file. A name stands for all modules that end in it, where all have an adapter.
// `base` is the directory of the weights.
std::string peft_config_text(const ModelConfig& config, const std::vector<PeftModule>& modules,
                             const std::vector<AdaptableTensor>& tensors, const std::string& base,
                             const NumberedExperts& experts = {});

// Whether PEFT takes `name` for the module or parameter `target`.
bool names_target(std::string_view name, std::string_view target);

}  // namespace anabatic::model
