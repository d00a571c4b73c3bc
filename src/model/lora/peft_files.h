// SPDX-License-Identifier: Apache-2.0
// Adapters as PEFT stores them: adapter_config.json and adapter_model.safetensors.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/checksums.h"
#include "io/safetensors.h"
#include "model/lora/peft_config.h"
#include "model/weights.h"

namespace anabatic::model {

// How one pair of tensors of gate and up of experts is read, where it is block-diagonal: as a group
// of both, or as two groups.
enum class GateUp : std::uint8_t {
  kTogether,
  kApart,           // one that is not block-diagonal is an error
  kApartIfPossible  // and stays together
};

class PeftFiles {
 public:
  // Opens the files of an adapter and finds the weights of this model that each tensor belongs to.
  // Takes every spelling of the family: stacks, and a pair of tensors for each expert.
  // InvalidArgument lists tensors that meet no weight, lack their other half, or have another shape
  // or rank, and targets without a tensor.
  PeftFiles(const ModelConfig& config, const std::filesystem::path& directory,
            GateUp gate_up = GateUp::kTogether);

  const PeftConfig& peft() const { return peft_; }
  const Adapter& adapter() const { return adapter_; }
  // Modules without an adapter that a name of target_modules would meet: PEFT has lost them, or the
  // names mean others.
  const std::vector<std::string>& left_out() const { return left_out_; }
  // Gives every element of A and B to the states of the groups.
  void load(const StateWriter& write) const;

  // Whether the files hold weights of the model too: PEFT adds those of an adapted embedding and
  // head, which stay as they are.
  bool holds_weights() const { return !weights_.empty(); }
  // InvalidArgument where these are not those of the model, in the dtype of the file.
  void require_equal_weights(const ModelConfig& config, const StateReader& read) const;

 private:
  struct Pair {
    std::string a, b;  // names of tensors
  };
  // Where the values of a group come from.
  struct Source {
    std::size_t tensor = 0;    // of tensors_
    std::size_t spelling = 0;  // of its file tensor
    std::vector<Pair> pairs;   // one, or where `is_numbered` that of each expert
    bool is_numbered = false;
    bool is_swapped = false;  // in and out, as PEFT had stacks before 0.19
    std::int64_t first = 0;   // of a block-diagonal pair: the group's first rank
    std::int64_t rank = 0;    // of the pair
    std::size_t group = 0;    // of adapter_
  };

  bool take(const ModelConfig& config, std::size_t tensor, std::vector<std::string>& problems);
  bool take_stack(std::size_t tensor, std::vector<std::string>& problems);
  bool take_numbered(const ModelConfig& config, std::size_t tensor, std::size_t spelling,
                     std::vector<std::string>& problems);
  bool has(const std::string& stem, AdapterKind kind = AdapterKind::kExperts) const;
  Pair use(const std::string& stem, std::vector<std::string>& problems,
           AdapterKind kind = AdapterKind::kExperts);
  void take_weight(const ModelConfig& config, const AdaptableTensor& own, const std::string& stem,
                   std::vector<std::string>& problems);
  void add(const std::vector<const Parameter*>& weights, Source source, const std::string& target,
           std::vector<std::string>& problems);
  bool fits(const Pair& pair, const std::string& target, std::int64_t a_columns,
            std::int64_t b_rows, std::int64_t width, std::vector<std::string>& problems) const;
  void split_gate_up(bool is_required);
  bool is_block_diagonal(const Source& source) const;
  void check_targets(const ModelConfig& config, std::vector<std::string>& problems);
  std::vector<float> values_of(const std::string& tensor) const;
  const FileTensor& file_of(const Source& source) const;  // whose rows those of B are
  void load_source(const Source& source, const StateWriter& write) const;

  Declarations declared_;
  std::vector<AdaptableTensor> tensors_;
  std::size_t module_spelling_;
  std::vector<WeightMap> maps_;  // by spelling; empty where none uses it
  PeftConfig peft_;
  io::SafetensorsDirectory files_;
  std::map<std::string, bool> used_;  // of every tensor of the file
  std::vector<std::string> targets_;  // that have tensors
  Adapter adapter_;
  std::vector<Source> sources_;
  std::vector<std::string> left_out_;
  std::map<std::string, std::string> weights_;  // tensors of the file, by the parameter they equal
};

// Writes both files into an existing directory, f32. Returns the checksums of the tensors' file.
// `base` is the directory of the weights under it.
io::ChecksumManifest write_peft_files(const ModelConfig& config, const Adapter& adapter,
                                      const StateReader& read,
                                      const std::filesystem::path& directory,
                                      const std::string& base);

// The same with a pair of tensors for each expert, as PEFT did on transformers 4.
io::ChecksumManifest write_numbered_peft_files(const ModelConfig& config, const Adapter& adapter,
                                               const StateReader& read,
                                               const std::filesystem::path& directory,
                                               const std::string& base);

}  // namespace anabatic::model
