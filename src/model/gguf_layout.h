// SPDX-License-Identifier: Apache-2.0
// Architectures of GGUF files that are read and written: what llama.cpp takes for granted in each,
// and which tensor holds which parameter.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/declarations.h"
#include "model/weights.h"

namespace anabatic::model {

struct GgufArchitecture {
  std::string_view name;            // general.architecture
  std::string_view model_type;      // of config.json
  std::string_view class_name;      // of transformers
  bool has_experts = false;         // in every layer; else in none
  bool has_shared = false;          // and an expert of every token
  bool has_shared_gate = false;     // with a gate
  bool has_mlp_width = false;       // experts are as wide as the MLP of a dense model
  bool has_pairs = false;           // rows of queries and keys are in pairs
  bool may_have_biases = false;     // of attention and, without experts, of the MLP
  bool has_qkv_bias = false;        // always
  bool has_scales = false;          // multipliers of embedding, residual, scores and logits
  bool has_rope_factors = false;    // may have kRopeFactors
  bool has_square_queries = false;  // all heads together are as wide as the hidden state
  bool has_all_kv_heads = false;    // as many as attention heads
  bool has_own_head = false;        // never tied
  bool has_all_biases = false;      // always: of attention, routers and experts
  bool has_sinks = false;
  bool has_windows = false;         // of layers 0, 2, 4, ...
  bool has_clamped_swiglu = false;  // with alpha 1.702 and limit 7
  bool has_exact_yarn = false;  // the bounds of its range are not rounded, unless kRopeTruncateKey
  QkNorm qk_norm = QkNorm::kNone;
  bool normalizes = false;  // weights of chosen experts add up to 1
};

std::span<const GgufArchitecture> gguf_architectures();
// Null where there is none. A family may share the architecture of another (mistral is llama).
const GgufArchitecture* find_gguf_architecture(std::string_view name, bool has_experts,
                                               bool has_shared);
const GgufArchitecture* gguf_architecture_of(const ModelConfig& config);
// "llama, qwen2, ...": each name once.
std::string gguf_architecture_names();
std::string gguf_model_types();  // families that can be written

// Frequencies of llama3 are divided by the factors in this tensor, which no parameter is.
inline constexpr std::string_view kRopeFactors = "rope_freqs.weight";
// Keys of ours for the parameters of llama3, of which llama.cpp has the factors alone.
inline constexpr std::string_view kRopeFactorKey = "anabatic.rope.factor",
                                  kRopeLowKey = "anabatic.rope.low_freq_factor",
                                  kRopeHighKey = "anabatic.rope.high_freq_factor",
                                  kRopeOriginalKey = "anabatic.rope.original_context_length";
// True in a file of an architecture with exact yarn whose bounds are rounded. llama.cpp always
// rounds them.
inline constexpr std::string_view kRopeTruncateKey = "anabatic.rope.truncate";

// The map of a GGUF file, with "" for the name of a parameter that has no tensor there. Experts of
// a layer share a tensor. Where rows are in pairs, row 2i + p of a head in the file is row
// p · d/2 + i of the parameter, with d rows a head; so are the elements of its bias.
WeightMap gguf_weight_map(const ModelConfig& config, bool has_pairs);

// Whether the values of a parameter may be quantised or rounded: those of a matrix may, but not
// those of a router.
bool is_gguf_matrix(const FileTensor& tensor);
bool is_gguf_expert(const FileTensor& tensor);  // a matrix of experts

}  // namespace anabatic::model
