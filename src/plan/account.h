// SPDX-License-Identifier: Apache-2.0
// An account of planned bytes: tables by use, layer and segment that sum to the planned peak, and
// the bytes in use at every position of the step.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.h"

namespace anabatic::plan {

// What planned bytes are used for.
enum class Use : std::uint8_t {
  kParameters,  // primary values
  kPackings,    // derived states: bf16 copies and packings
  kOptimizer,   // moments
  kMasks,       // of sparse parameters
  kCaches,      // keys and values of generation
  kGradients,
  kSaved,      // computed in forward, read later in backward
  kScratch,    // every other value of the frame
  kWorkspace,  // of the running kernel
  kInputs,     // batch and step inputs
  kSlack       // unused arena bytes at the position of the peak
};
inline constexpr std::size_t kNumUses = 11;
std::string_view to_string(Use use);  // "parameters", "packings", "optimizer state", ...

struct AccountRow {
  Use use{};
  std::string what;  // "f32", "bf16 panels_transposed"; of values: the dtype; "" if there is none
  std::int64_t bytes = 0;
};

struct Account {
  std::vector<AccountRow> rows;     // in the order of Use, then the largest first; no row is 0
  std::int64_t peak_bytes = 0;      // the sum of rows; Plan::peak_bytes()
  std::int32_t peak_position = -1;  // where most bytes are in use; -1: the plan runs nothing
  std::string peak_op;              // node_label of the node that runs there
  // Each sums to peak_bytes. Keys: "layers.3", "" outside layers; segments, "inputs", "slack".
  std::map<std::string, std::int64_t> by_layer, by_segment;
  // Most bytes saved at once, those of layer n under n, others under -1; at the end of forward.
  std::map<std::int32_t, std::int64_t> saved_by_layer;

  std::int64_t bytes(Use use) const;
};

// Uses only buffers and lifetimes: a state may be in any arena. Bytes count as aligned.
Account make_account(const ir::Graph& graph, const Plan& plan);

// Bytes in use at each position of forward ++ backward ++ update, by Use. States and arenas count
// all the time; kSlack is what the arenas have beyond the other uses.
std::vector<std::array<std::int64_t, kNumUses>> timeline(const ir::Graph& graph, const Plan& plan);

}  // namespace anabatic::plan
