// SPDX-License-Identifier: Apache-2.0
// What the products of each weight multiply in a graph after its passes, and why.
#pragma once
#include <string>
#include <vector>

#include "ir/graph.h"
#include "spec/training.h"

namespace anabatic::passes {

// That of all products of a weight, or of those in the roles that the reason begins with.
struct ProductFormat {
  std::string unit;           // the weight's name without ".weight": "layers.3.experts.down"
  spec::Precision precision;  // of its operands; kFp16 where they are stored in f16
  std::string reason;         // why it is not that of the policy; empty where it is
};

// In the order in which the graph reads the weights: each once, and one whose products were raised
// (spec::ProductOptions::raised) once for each format. Weights that are read from disk are
// not there. Linear in nodes times states.
std::vector<ProductFormat> product_formats(const ir::Graph& graph, spec::Precision policy,
                                           const spec::ProductOptions& options);

// One line a format. A unit that all layers have alike is there once, as "layers.N.experts.down":
//
//   products in int8: layers.N.attention.q, head
//   products in bf16: layers.N.router (its result is f32), layers.{0,2}.mlp.up (precision.keep ...)
std::string to_string(const std::vector<ProductFormat>& formats);

}  // namespace anabatic::passes
