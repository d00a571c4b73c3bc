// SPDX-License-Identifier: Apache-2.0
// What the names in memory.recompute, keep, hot and cold mean.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "plan/plan.h"

namespace anabatic::plan {

// Behind "layers.N.", or the whole.
std::string_view without_layer(std::string_view key);

// Of a value's key (analysis/rebuild.h) or a parameter: "layers.3.experts.activation" whole, or
// without its layer, or the segment's name alone; "attention.qkv" is its q, k and v, and what is
// made of each (q_rope, q_norm).
bool is_named(std::string_view key, std::string_view hint);

// May this state of the optimizer leave memory? The one meaning of hot and cold for states: never
// where its parameter is hot; with `only_cold`, where its parameter is cold.
bool may_go_to_disk(const DiskOptions& options, std::string_view state);

// InvalidArgument for a hint that cannot be obeyed, with the reason: of `hot`, that names neither
// what the backward reads nor a parameter; of `cold`, that names nothing whose moments `plan` has
// on disk, nor a value that it offloads, which it does only where `offloads`. For a program that
// trains and updates.
void require_obeyed(const ir::Graph& graph, const Plan& plan, const DiskOptions& options,
                    bool offloads);

}  // namespace anabatic::plan
