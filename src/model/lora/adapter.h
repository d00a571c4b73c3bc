// SPDX-License-Identifier: Apache-2.0
// A low-rank adapter (LoRA, https://arxiv.org/abs/2106.09685): next to a frozen weight W it has A
// and B, and the product becomes W x + scale · B (A x). Which weights have one, and their shapes.
// A row of a table becomes W[t] + scale · B A[t]: its A has a row for each row of W.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "model/declarations.h"

namespace anabatic::model {

// What a weight belongs to: the words of lora.targets, and the rows of the table of coverage.
enum class AdapterKind : std::uint8_t {
  kAttention,
  kMlp,        // of dense layers
  kShared,     // the expert of every token
  kExperts,    // the stacks
  kRouter,     // and the gate of a shared expert
  kEmbedding,  // tables
  kHead        // also where it is the embedding
};
inline constexpr std::size_t kNumAdapterKinds = 7;
std::string_view to_string(AdapterKind kind);

// The kind of a parameter that is a matrix or a stack of them; none of norms, biases and sinks.
std::optional<AdapterKind> adapter_kind(const Parameter& parameter);

// B of one adapted weight.
struct AdapterPart {
  std::string parameter;  // "layers.3.attention.q.weight"
  std::int64_t rows = 0;  // of the weight, or of each expert's; of a table: the width of its rows
  std::string b() const;  // the state "layers.3.attention.q.lora_B" [rows, rank], [E, rows, rank]
};

// One A and the weights that share it, which read the same rows. Weights that are one tensor in
// transformers share it, as PEFT's adapters of that tensor do.
struct AdapterGroup {
  std::string name;  // "layers.3.attention.q", "layers.3.experts.gate_up"
  AdapterKind kind = AdapterKind::kAttention;
  std::int64_t num_experts = 0;  // 0: no stack
  std::int64_t columns = 0;      // of the weights; of a table: how many rows it has
  std::int64_t rank = 0;
  double alpha = 0;
  bool divides_by_root = false;
  std::vector<AdapterPart> parts;

  bool is_table() const { return kind == AdapterKind::kEmbedding; }
  double scale() const;   // alpha / rank, or alpha / √rank
  std::string a() const;  // the state "layers.3.attention.q.lora_A" [rank, columns]
  std::vector<std::int64_t> a_shape() const;  // of a table: [columns, rank]
  std::vector<std::int64_t> b_shape(const AdapterPart& part) const;
  std::int64_t num_elements() const;  // of A and all B
  // Those that a token meets in a product, an expert's counted once.
  std::int64_t num_multiplied() const;
};

struct Adapter {
  std::vector<AdapterGroup> groups;  // in the order of the forward pass
  double dropout = 0;                // of what A reads, in training; files carry it

  std::int64_t num_elements() const;
  // The group with this weight; null where it has no adapter.
  const AdapterGroup* find(std::string_view parameter) const;
};

// What a run asks for.
struct AdapterRequest {
  std::vector<std::string> targets;  // words, or regular expressions over names of parameters
  std::int64_t rank = 16;
  double alpha = 32;
  bool divides_by_root = false;  // scale is alpha / √rank, else alpha / rank
  bool shares_gate_up = true;    // A of gate and up in experts
};

// InvalidArgument for a target that meets no weight, or a part of a tensor, and lists what there
// is.
Adapter choose_adapter(const ModelConfig& config, const AdapterRequest& request);

// The parameters that can have an adapter, and others. A head has one of its own also where it is
// the embedding: its parameter "head.weight" is none of the model then.
Declarations adaptable_parameters(const ModelConfig& config);

// The weights that one tensor of transformers holds, in the order of its rows: a single one, or
// gate and up, ... Every weight of the model that can have an adapter is in one of them.
struct AdaptableTensor {
  std::string file;  // its name there: "model.layers.0.mlp.experts.gate_up_proj"
  AdapterKind kind = AdapterKind::kAttention;
  std::vector<const Parameter*> weights;
};
std::vector<AdaptableTensor> adaptable_tensors(const ModelConfig& config,
                                               const Declarations& declared);
// The spelling that names parameters as modules of transformers do: experts are stacks there.
std::size_t module_spelling(const ModelConfig& config);

AdapterGroup make_group(const std::vector<const Parameter*>& weights, AdapterKind kind,
                        std::int64_t rank, double alpha, bool divides_by_root);

// Adds A, B and their products to a forward graph, and freezes every other parameter.
// InvalidArgument where something else than a product reads a weight, as after model.replace.
// With dropout products by A read rows with dropout. Those that read the same rows share its draws,
// so that these rows are kept once. Tables have none, as in PEFT, and stacks of experts must not.
void add_adapter(ir::Graph& graph, const Adapter& adapter, double dropout = 0);

// Why the adapter cannot become part of the weights; "" where it can. An embedding and the head
// are one tensor in some models, and it changes one of them.
std::string why_not_merged(const ModelConfig& config, const Adapter& adapter);

// Which weights have an adapter and what stays frozen: a table for people.
std::string coverage_to_string(const ModelConfig& config, const Adapter& adapter);

}  // namespace anabatic::model
