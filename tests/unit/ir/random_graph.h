// SPDX-License-Identifier: Apache-2.0
// Random graphs over the fake ops that the verifier accepts: inputs, states that end anew or stay,
// attributes of every kind, dead nodes and dead values.
#pragma once
#include <cstdint>

#include "ir/graph.h"

namespace anabatic::ir {

Graph random_graph(std::uint64_t seed, int num_nodes = 40);

}  // namespace anabatic::ir
