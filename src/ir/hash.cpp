// SPDX-License-Identifier: Apache-2.0
#include <xxhash.h>

#include "ir/graph.h"

namespace anabatic::ir {

// The printed text holds all that a graph means and nothing else, so it is what is hashed.
std::uint64_t hash(const Graph& graph) {
  const std::string text = print(graph);
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace anabatic::ir
