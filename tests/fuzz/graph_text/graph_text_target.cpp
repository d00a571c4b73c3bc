// SPDX-License-Identifier: Apache-2.0
// Graph text that is read prints stably.
#include "fuzz/fuzz_target.h"
#include "ir/graph.h"
#include "ops/table.h"

using namespace anabatic;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::view(data, size);
  return fuzz::read_or_refuse(
      text, [&] { return ir::parse(text, ops::find_op); },
      [](const ir::Graph& graph) {
        const std::string printed = ir::print(graph);
        const ir::Graph again = ir::parse(printed, ops::find_op);
        fuzz::require(ir::print(again) == printed, "the text of a graph is stable");
        fuzz::require(ir::hash(again) == ir::hash(graph), "graphs of equal text have equal hashes");
      });
}
