// SPDX-License-Identifier: Apache-2.0
// The node of each call of a program, and the op's own estimate of its cost.
#pragma once
#include <vector>

#include "ir/op_schema.h"
#include "lower/compile.h"

namespace anabatic::lower {

struct CallInfo {
  spec::Action action{};
  std::int32_t layout = 0;           // index into Program::layouts
  const ir::Graph* graph = nullptr;  // of the layout
  const ir::Node* node = nullptr;
  std::int32_t position = 0;  // of the node in forward ++ backward ++ update of the layout's plan
  bool is_zero_fill = false;  // zeroes before the node
  spec::Precision precision = spec::Precision::kFp32;  // whose peak is its roof
  ir::Cost cost{};

  // Whether the calls differ at most in that one assigns where the other adds.
  bool is_twin_of(const CallInfo& other) const {
    return node == other.node && action == other.action && is_zero_fill == other.is_zero_fill;
  }
};

// By index into Program::calls, twins next to each other. Points into `compiled`.
std::vector<CallInfo> call_infos(const Compiled& compiled);

}  // namespace anabatic::lower
