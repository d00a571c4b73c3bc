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

// What a norm of queries and keys covers.
enum class QkNorm : std::uint8_t {
  kNone,
  kHead,     // each head, all with one weight [head_dim]
  kAllHeads  // all heads together
};

// Grouped-query attention: consecutive query heads share a head of keys and values.
struct Gqa {
  std::int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  bool qkv_bias = false, output_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool norms_after_rope = false;          // those of queries and keys
  bool rotates_pairs = false;             // files rotate columns (2i, 2i + 1) of a whole head
  double clip_qkv = 0;                    // elements are kept within ±clip_qkv; 0: no limit
  std::optional<double> softmax_scale{};  // of scores; absent: head_dim^-1/2
  std::int64_t window = 0;                // keys that a query sees; 0: all before it
  bool has_sinks = false;                 // one more score a head, of a key without a value
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
  spec::Activation activation{};  // of gate and up; of one operand: there is no gate
  bool bias = false;
};

// How experts are chosen and weighed, and what a router has in addition to its matrix.
struct Router {
  // Its `has_bias` is a correction bias: a state that no gradient reaches. `top_k` is the block's.
  spec::RouterForm form{.normalizes = true};
  bool bias = false;  // added to the logits, and trained
  // Whether a model without files keeps its matrix and correction bias in F32 whatever the config's
  // dtype, as transformers writes them.
  bool is_saved_in_f32 = false;
};

// The correction bias [E] among a layer's parameters.
inline constexpr const char* kCorrectionBias = "router.correction_bias";

// An MLP that every token passes through, next to the experts.
struct SharedExpert {
  Mlp mlp{};
  bool is_gated = false;  // times the sigmoid of one more row's product with the token
};

// A router sends each token to `top_k` of the experts, which are MLPs.
struct Moe {
  std::int64_t num_experts = 0, top_k = 0;
  std::int64_t width = 0;  // of one expert
  spec::Activation activation{};
  bool expert_bias = false;  // of each of an expert's projections
  Router router{};
  std::optional<SharedExpert> shared{};
};

// A new kind of block is an alternative here, with a function in model/blocks.
using Attention = std::variant<Gqa, Mla>;
using FeedForward = std::variant<Mlp, Moe>;

// Where the norms of a layer's two blocks are.
enum class NormPlacement : std::uint8_t {
  kBefore,  // hidden + block(norm(hidden))
  kAfter,   // hidden + norm(block(hidden))
  kBoth     // hidden + norm(block(norm(hidden)))
};

struct LayerSpec {
  Attention attention{};
  FeedForward feed_forward{};
  NormPlacement norms = NormPlacement::kBefore;
};

struct HeadSpec {
  bool is_tied = false;  // its weight is the embedding's
  bool bias = false;     // of the logits
};

// Norms of the hidden state.
enum class NormKind : std::uint8_t {
  kRms,   // with a weight
  kLayer  // less its mean, with a weight and a bias
};

// The rows of each head in files, where their order is not that of the parameter. The parameter
// has the rotated rows first, in the half form: row i rotates with row i + rotated / 2. A file has
// them last, and perhaps in pairs: row 2i rotates with row 2i + 1.
struct HeadRows {
  std::int64_t rows = 0;     // of a head; 0: files have the parameter's order
  std::int64_t rotated = 0;  // even
  bool in_pairs = false;
  bool operator==(const HeadRows&) const = default;

  // The parameter's row that a file has as its row `in_file`.
  std::int64_t own_row(std::int64_t in_file) const;
};

// The file tensor of a parameter: row-major, of the same shape, named within the layer. "{}" stands
// for an expert's number where each expert has a tensor. Parameters of a layer that name one tensor
// share it: their rows follow one another, in order of declaration, in each expert's matrix.
// Another layout in files would be a field here, which weight_map.cpp reads.
struct FileView {
  std::string tensor;
  HeadRows heads{};
  std::int64_t rows_in_turn = 0;  // those that share the tensor give so many rows in turn; 0: all
  bool joins_columns = false;     // rows of those that share the tensor stand side by side
  bool is_transposed = false;     // files have each matrix [in, out]; all that share it say so
  bool has_leading_one = false;   // files have an axis of size 1 before the others
};

// A file's name for a parameter, in place of the one that is declared with it.
struct Renamed {
  std::string parameter;  // without its layer: "experts.gate.weight"; kLayers: of all layers
  FileView file;
};
// What the names of layers begin with, before the number: "model.layers" in files, unless renamed.
inline constexpr const char* kLayers = "layers";
// One way in which the files of a family name their tensors.
using Spelling = std::vector<Renamed>;

// Shares of elements that training sets to 0 at random (spec/dropout.h).
struct Dropout {
  double residual = 0;   // of what a block adds to the hidden state
  double embedding = 0;  // of the embedding's rows, positions included
  double attention = 0;  // of the probabilities that attention multiplies values with
  double adapter = 0;    // of what A of an adapter reads, if it is a product
};

struct ModelSpec {
  std::int64_t vocab_size = 0, hidden_size = 0;
  std::int64_t padding_token = -1;  // its row of the embedding is not trained; -1: none
  double norm_epsilon = 1e-6;
  NormKind norm = NormKind::kRms;
  double initializer_range = 0.02;  // standard deviation of initial matrices
  double residual_deviation = 0;    // of attention.o and mlp.down; 0: as the others
  double embedding_multiplier = 1;  // of the embedding's rows
  double residual_multiplier = 1;   // of what a block adds to the hidden state
  double logits_divisor = 1;
  double post_norm_start = 1;  // first weights of norms behind blocks
  spec::Rope rope{};
  // Rows of a trained table of positions, which are added to the embedding. 0: queries and keys
  // rotate instead.
  std::int64_t learned_positions = 0;
  std::vector<LayerSpec> layers{};
  // Layers of multi-token prediction, numbered behind `layers`: each predicts a token further on.
  std::vector<LayerSpec> mtp{};
  HeadSpec head{};
  std::vector<Spelling> spellings{Spelling{}};  // exports use the first
  // Ends of the names of tensors that files may hold and the model does not use.
  std::vector<std::string> unused_tensors{};
};

// The MoE block of the first layer that has one; null in a dense model.
const Moe* first_moe(const ModelSpec& spec);
std::int64_t num_experts(const ModelSpec& spec);  // of that block; 0 in a dense model

}  // namespace anabatic::model
