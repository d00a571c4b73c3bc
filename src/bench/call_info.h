// SPDX-License-Identifier: Apache-2.0
// Which node each call of a program is, and what the op says it costs.
#pragma once
#include <array>
#include <vector>

#include "ir/op_schema.h"
#include "lower/compile.h"

namespace anabatic::bench {

struct CallInfo {
  const ir::Node* node = nullptr;
  bool is_zero_fill = false;  // zeroes ahead of the node
  bool is_bf16 = false;       // of the node's floating inputs, one is bf16: which peak is its roof
  ir::Cost cost{};
};

// By action, in the order of the program's calls. Points into `compiled`.
using CallInfos = std::array<std::vector<CallInfo>, 3>;
CallInfos call_infos(const lower::Compiled& compiled);

}  // namespace anabatic::bench
