// SPDX-License-Identifier: Apache-2.0
// What a pass may read in addition to the graph. Passes write none of it.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ir/op_schema.h"
#include "spec/decisions.h"
#include "spec/mesh.h"
#include "spec/sparsity.h"
#include "spec/state.h"
#include "spec/training.h"
#include "tensor/tensor_type.h"

namespace anabatic::passes {

// States by name.
struct HeldState {
  spec::StateRole role = spec::StateRole::kParameter;
  Layout layout = kRowMajor;
  std::optional<BlockFormat> blocks{};  // of a quantised one
  DType dtype = DType::kBFloat16;
};
using HeldStates = std::map<std::string, HeldState, std::less<>>;
using StateNames = std::set<std::string, std::less<>>;
// By parameter that is a stack of experts: the experts at which a slice of its moments begins.
using ExpertCuts = std::map<std::string, std::set<std::int64_t>, std::less<>>;

// What differentiate takes in addition to the objective and parameters. Each kind adds up.
struct GradientRequest {
  // Outputs whose gradients are given: batch inputs `seeds.NAME`, of the output's type.
  std::vector<std::string> outputs{};
  // Batch and step inputs whose gradients are outputs `gradients.NAME`, of the input's type.
  std::vector<std::string> inputs{};
};

struct PassOptions {
  spec::Precision precision = spec::Precision::kFp32;
  spec::ProductOptions products{};
  spec::QuantizationOptions quantization{};
  spec::SparsityOptions sparsity{};
  spec::OptimizerOptions optimizer{};
  // That of frozen matrices which products alone read (quantize_frozen); none: they are as others.
  std::optional<BlockFormat> frozen_format{};
  bool pack_transposed = true;     // keep a second packing of weights; otherwise the backward packs
  bool keep_packings = true;       // keep packings; otherwise each reader's node makes its own
  bool with_update = true;         // false: gradients only, no optimizer
  bool norms_in_products = false;  // all that fuse_norm_linear can take, at any price
  const StateNames* only_norms = nullptr;  // these values' instead. null: not known
  std::int64_t micro_batches = 0;          // of a step; 0: not known
  std::int64_t leaves = 1;                 // into which these are divided (spec/step.h)
  std::int64_t slice_bytes = 0;  // most bytes of a moment in one update (slice_optimizer); 0: all
  // Where slices begin in addition to those that `slice_bytes` makes. null: nowhere.
  const ExpertCuts* expert_cuts = nullptr;
  // The states of this program that other programs hold. null: none.
  const HeldStates* held_states = nullptr;
  // Whether a forward makes derived states that these do not have itself (stream_weights).
  bool streams_weights = false;
  // Parameters that are on disk between their readers (reload_parameters). null: none.
  const StateNames* on_disk = nullptr;
  const spec::Decisions* decisions = nullptr;  // null: none
  const GradientRequest* gradients = nullptr;  // null: those of parameters, from the objective
  spec::Mesh mesh{};                           // of the ranks that share a step
  std::int32_t rank = 0;                       // this one of them
  double expert_capacity = 0;                  // spec::Decisions::expert_capacity
  bool shards_optimizer = false;               // each rank updates a part of each parameter
  // Gets one line a unit: which precision its products have, and why. null: none.
  std::vector<std::string>* explanation = nullptr;
};

struct PassContext {
  PassOptions options{};
  // The op table that builders and parsers of the pass use; never null when a pass runs.
  ir::FindOp find_op{};
  // What a node would take, by the machine's calibrated prices. Null: passes choose without.
  Function<double(const ir::Graph&, const ir::Node&)> seconds{};

  // The op with these fields of a product's form: copy the form of a node and change fields. An
  // internal error where there is none.
  const ir::OpSchema* find_product(const spec::ProductForm& form) const;
};

}  // namespace anabatic::passes
