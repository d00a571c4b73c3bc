// SPDX-License-Identifier: Apache-2.0
// A model as a list of layers. A family's source makes it from config.json. Graph, weight map and
// counts follow from it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "spec/activation.h"
#include "spec/rope.h"
#include "spec/router.h"

namespace anabatic::model {

// Grouped-query attention: consecutive query heads share a head of keys and values.
struct Gqa {
  std::int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  bool qkv_bias = false, output_bias = false;
  bool qk_norm = false;     // each head of queries and keys is normalised before it rotates
  std::int64_t window = 0;  // keys that a query sees; 0: all before it
};

// Multi-head latent attention (DeepSeek-V2): keys and values are products of one latent row a
// token, and all heads share the part of the key that rotates. A head's query and key have rope_dim
// + nope_dim columns, the rotated ones first.
struct Mla {
  std::int64_t num_heads = 0;
  std::int64_t q_rank = 0;  // of the latent row of queries; 0: a single product
  std::int64_t kv_rank = 0;
  std::int64_t rope_dim = 0, nope_dim = 0, v_dim = 0;
  bool bias = false;             // of the products to latent rows and of the output
  bool rotates_pairs = true;     // files rotate columns (2i, 2i + 1)
  double latent_epsilon = 1e-6;  // of the norms of latent rows
  double scale = 0;              // of scores
};

struct Mlp {
  std::int64_t width = 0;
  spec::Activation activation{};  // of gate and up
  bool bias = false;
};

// How experts are chosen and weighed, and what a router has in addition to its matrix.
struct Router {
  // Its `has_bias` is a correction bias: a state that no gradient reaches. `top_k` is the block's.
  spec::RouterForm form{.normalizes = true};
  bool bias = false;  // added to the logits, and trained
};

// The correction bias [E] among a layer's parameters.
inline constexpr const char* kCorrectionBias = "router.correction_bias";

// An MLP that every token passes through, next to the experts.
struct SharedExpert {
  Mlp mlp{};
  bool is_gated = false;  // times the sigmoid of one more row's product with the token
};

// A router sends each token to `top_k` of the experts, which are MLPs without biases.
struct Moe {
  std::int64_t num_experts = 0, top_k = 0;
  std::int64_t width = 0;  // of one expert
  spec::Activation activation{};
  Router router{};
  std::optional<SharedExpert> shared{};
};

// A new kind of block is an alternative here, with a function in model/blocks.
using Attention = std::variant<Gqa, Mla>;
using FeedForward = std::variant<Mlp, Moe>;

// Where the norms of a layer's two blocks are.
enum class NormPlacement : std::uint8_t {
  kBefore  // hidden + block(norm(hidden))
};

struct LayerSpec {
  Attention attention{};
  FeedForward feed_forward{};
  NormPlacement norms = NormPlacement::kBefore;
};

struct HeadSpec {
  bool is_tied = false;  // its weight is the embedding's
};

// A parameter whose rows lie in another order in the file, or among those of others. From row
// `first` on, the file has groups of `group` rows (a head, say). Row i of the parameter's group g
// is row first + g * group + rows[i].
struct RowOrder {
  std::int64_t first = 0, group = 0;
  std::vector<std::int64_t> rows;
};

// The file tensor of a parameter: row-major, of the same shape, named within the layer. "{}" stands
// for an expert's number where each expert has a tensor. Parameters of a layer that name one tensor
// share it: their rows follow one another, in order of declaration, in each expert's matrix.
// Another layout in files would be a field here, which weight_map.cpp reads.
struct FileView {
  std::string tensor;
  std::optional<RowOrder> order{};  // none: the rows of the parameter, in its order
};

// A file's name for a parameter, in place of the one that is declared with it.
struct Renamed {
  std::string parameter;  // without its layer: "experts.gate.weight"
  FileView file;
};
// One way in which the files of a family name their tensors.
using Spelling = std::vector<Renamed>;

struct ModelSpec {
  std::int64_t vocab_size = 0, hidden_size = 0;
  std::int64_t padding_token = -1;  // its row of the embedding is not trained; -1: none
  double norm_epsilon = 1e-6;
  double initializer_range = 0.02;  // standard deviation of initial matrices
  spec::Rope rope{};
  std::vector<LayerSpec> layers{};
  HeadSpec head{};
  std::vector<Spelling> spellings{Spelling{}};  // exports use the first
};

// The MoE block of the first layer that has one; null in a dense model.
const Moe* first_moe(const ModelSpec& spec);
std::int64_t num_experts(const ModelSpec& spec);  // of that block; 0 in a dense model

}  // namespace anabatic::model
