// SPDX-License-Identifier: Apache-2.0
// Calls of an op's functions as the contract allows them, in memory that shows what breaks it.
#pragma once
#include <string>
#include <vector>

#include "plugin/check/guarded_call.h"
#include "plugin/plugin_op.h"

namespace anabatic::plugin::check {

enum class Function { kForward, kBackward };
std::string_view to_string(Function function);

class Caller {
 public:
  Caller(const PluginOp& op, Reporter& reporter);

  // Types of the outputs. Skips the case where `infer` refuses the inputs; fails where its answer
  // does not fit the op's table.
  std::vector<TensorType> infer(const Operands& inputs);
  // Asks for the cost, which must be no less than 0.
  void cost(const Operands& inputs, const std::vector<TensorType>& outputs);
  // One call. `outputs` are given by their types; returns them with what was written. Fails where
  // the call does, or writes what it may not.
  Operands run(Function function, const Operands& inputs, Operands outputs, const Setting& setting,
               std::string_view note = {});

  Reporter& reporter() { return reporter_; }

 private:
  std::int64_t workspace_bytes(Function function, const Operands& inputs, const Operands& outputs);

  const PluginOp& op_;
  Reporter& reporter_;
  std::string attributes_;
  Teams teams_;
};

}  // namespace anabatic::plugin::check
