// SPDX-License-Identifier: Apache-2.0
// The masks of a run: what they are of, and which elements are present in which step.
//
// Before a step at which its schedule is due, an entry of sparsity.weights chooses the masks of
// its weights anew. They follow from the weights before this step. The update of the step makes
// what is absent 0, with its moments, and so does every update after it. So after each update
// weights and masks agree, and a checkpoint has both.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "anabatic/events.h"
#include "ir/graph.h"
#include "tensor/tensor_type.h"
#include "train/run_config.h"

namespace anabatic::runtime {
class StateStore;
}

namespace anabatic::train {

class ModelSession;

// A weight with a mask.
struct MaskedWeight {
  Name parameter{}, mask{};
  std::int64_t matrices = 1, rows = 0, columns = 0;

  std::int64_t num_elements() const { return matrices * rows * columns; }
};

// An entry of sparsity.weights with its weights in a training graph.
struct MaskedUnits {
  spec::SparseUnits entry{};
  std::vector<MaskedWeight> weights{};

  std::string name() const;  // "experts.down, experts.up"
  std::int64_t num_elements() const;
  // The share of mask elements that are present at a density, as shapes can give it.
  double reached(double density) const;
};
std::vector<MaskedUnits> masked_units(const ir::Graph& training, const RunConfig& run);

// A line for each entry: "experts.down: block32, density 0.25 from step 2000 on, 24 weights of
// 6291456 elements, 61.2 % of the parameters". Says where shapes give another density than was
// asked for. Empty without sparse weights.
std::vector<std::string> sparsity_lines(const ir::Graph& training, const RunConfig& run);

// Bytes that choosing masks takes at once: on each thread a matrix in f32 and its scores.
std::int64_t choice_bytes(const ir::Graph& training, std::int64_t num_threads);

// The masks of a program that the store has not yet, and how they begin: everything is present.
std::vector<Name> new_masks(const ir::Graph& graph, const runtime::StateStore& store);
void fill_mask(const TensorView& mask);

class SparseWeights {
 public:
  SparseWeights() = default;  // of a run without them
  SparseWeights(const RunConfig& run, const ir::Graph& training)
      : units_(masked_units(training, run)) {}

  // Chooses the masks that are due before a step, with choice_bytes of memory. Returns their
  // entries.
  std::vector<SparsityMetrics> prepare(ModelSession& session, std::int64_t step) const;

  // Makes absent weights 0 where an update does, before what is derived from them is made. A plan
  // with final masks expects it (spec::OptimizerStep::kept).
  void clear(ModelSession& session) const;
  // InvalidArgument where an absent weight is not 0: a checkpoint that something else has changed.
  void require_zeroes(ModelSession& session) const;

 private:
  std::vector<MaskedUnits> units_;
};

}  // namespace anabatic::train
