// SPDX-License-Identifier: Apache-2.0
// A model as a GGUF file: the metadata that stand for its config, the type of each tensor, and the
// bytes.
#pragma once
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "io/gguf_writer.h"
#include "model/gguf_layout.h"
#include "model/gguf_source.h"
#include "model/value_comparison.h"

namespace anabatic::model {

// Unsupported lists what llama.cpp has no place for: another family, and fields of the config that
// its architecture takes for granted otherwise.
const GgufArchitecture& require_gguf_architecture(const ModelConfig& config);

// What will be written. Vectors, biases and routers are F32, whatever type matrices get.
struct GgufTarget {
  WeightMap map;
  std::vector<const io::BlockType*> types;  // of the tensors of `map`
  std::vector<float> rope_factors{};        // kRopeFactors; empty: none
  std::vector<std::string> in_f16{};  // tensors with rows that no block of the wanted type divides

  const io::BlockType& main_type() const;  // of most elements of matrices
};

// The type of some parameters, whatever that of others is.
struct GgufParameterType {
  const io::BlockType* type = nullptr;  // null: of none
  std::set<std::string, std::less<>> parameters{};
};

// `type`: of matrices; null: they keep the dtype that `source` has for their parameter. MXFP4 is of
// experts alone, Unsupported outside gpt-oss. So is a tensor with `own` parameters and others.
GgufTarget gguf_target(const ModelConfig& config, const WeightMap& source,
                       const io::BlockType* type, const GgufParameterType& own = {});

// The keys of general.* and of the architecture.
void add_gguf_config(const ModelConfig& config, const std::string& name, const GgufTarget& target,
                     io::GgufKeys& keys);

// Writes a file that appears whole or not at all, with a few blocks of values in memory. Several
// threads call `read`, each for another tensor. InvalidArgument for a value that a tensor of F16
// cannot hold.
void write_gguf(const std::filesystem::path& file, io::GgufKeys keys, const GgufTarget& target,
                const StateReader& read);

// Each block has to be that of the values.
ValueComparison compare_blocks(const StateReader& read, const GgufSource& file);

}  // namespace anabatic::model
