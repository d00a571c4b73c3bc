// SPDX-License-Identifier: Apache-2.0
// Which node each call of a program is, and what the op says it costs.
#pragma once
#include <vector>

#include "ir/op_schema.h"
#include "lower/compile.h"

namespace anabatic::lower {

struct CallInfo {
  const ir::Node* node = nullptr;
  std::size_t position = 0;   // of the node in its action's order
  bool is_zero_fill = false;  // zeroes ahead of the node
  bool is_bf16 = false;       // of the node's floating inputs, one is bf16: which peak is its roof
  ir::Cost cost{};
};

// The calls of one action; points into what it was made of.
struct ProgramPart {
  spec::Action action{};
  bool is_first_apart = false;  // runtime::Program::first
  const ir::Graph* graph = nullptr;
  const std::vector<runtime::Call>* calls = nullptr;
  std::vector<CallInfo> infos{};  // one a call
};

// By action; then those of a first micro-batch that has calls of its own.
std::vector<ProgramPart> parts_of(const Compiled& compiled);

}  // namespace anabatic::lower
