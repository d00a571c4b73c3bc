// SPDX-License-Identifier: Apache-2.0
// From the forward graph of a layer to two graphs whose operands are all the caller's: a forward,
// and a backward that starts from the gradients of outputs.
//
//   forward:   x, gate_up, down, index, weights        -> y, saved.0, saved.1, ...
//   backward:  the same, saved.0, ..., seeds.y         -> gradients.x, gradients.gate_up, ...
//
// Both come from one graph that the passes of models have gone over, cut by phase. What the
// backward reads of the forward is saved. Weights, which are parameters until then, become inputs:
// each graph makes the packings that it reads, unless the signature says that they come as inputs.
// Each of those has a graph that makes it. A weight's gradient is written where its rows are in the
// whole, in the weight's dtype.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "layer/layer_builder.h"
#include "ops/table.h"

namespace anabatic::layer {

struct SavedValue {
  std::string name;
  TensorType type;
  int output = -1;    // index into LayerGraph::outputs where it is one of them
  int gradient = -1;  // index into the signature's inputs: its gradient, for a seed of 1
};

// A packing that comes as an input.
struct PackedValue {
  std::string name;  // packed_name: of the input, and of the output of its graph
  LayerPacking packing;
  ir::Graph graph;  // makes it of the weight
};

std::string packed_name(std::size_t packing);

struct SplitLayer {
  ir::Graph forward;
  std::optional<ir::Graph> backward;  // none where no gradient is asked for
  std::vector<SavedValue> saved;
  std::vector<PackedValue> packed;
};

// `find_op` knows the ops of the layer.
SplitLayer split_layer(LayerGraph layer, const LayerSignature& signature,
                       ir::FindOp find_op = ops::find_op);

// The part of a backward that makes the gradients of these inputs.
ir::Graph backward_for(const ir::Graph& backward, const std::set<std::string>& inputs);

}  // namespace anabatic::layer
