// SPDX-License-Identifier: Apache-2.0
// An op of a plugin as the engine sees it: a schema and a kernel of the op, and of its gradient.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "anabatic/plugin.h"
#include "ir/op_schema.h"
#include "kernels/kernel.h"
#include "plugin/plugin_call.h"

namespace anabatic::plugin {

// Names of ops and operands: at most 64 lower case letters, digits and _, no digit first.
bool is_plugin_name(std::string_view text);
// What the engine has of a name that no op of a plugin may have therefore: an op or an activation.
// Empty: nothing.
std::string meaning_in_engine(std::string_view name);

// An operand, copied and parsed.
struct OperandSpec {
  std::string name;
  std::int32_t kind = ANABATIC_ACTIVATION;
  std::vector<std::string> shape;  // of each dimension a name or a number
  std::uint32_t dtypes = 0;
  std::string below;  // empty: no limit is known

  bool has_gradient() const { return kind == ANABATIC_ACTIVATION || kind == ANABATIC_WEIGHT; }
  bool takes(DType dtype) const;
};

class PluginOp {
 public:
  // Copies what is used of `op`, of which `bytes` are there. InvalidArgument beginning with `file`
  // for a table that cannot be right.
  PluginOp(const anabatic_op* op, std::size_t bytes, std::string file);
  PluginOp(const PluginOp&) = delete;
  PluginOp& operator=(const PluginOp&) = delete;

  const std::string& name() const { return name_; }
  const std::string& gradient_name() const { return gradient_name_; }
  const std::string& file() const { return file_; }
  const std::string& summary() const { return summary_; }
  const std::string& signature() const { return signature_; }
  const std::vector<OperandSpec>& inputs() const { return inputs_; }
  const std::vector<OperandSpec>& outputs() const { return outputs_; }
  const spec::Attributes& defaults() const { return defaults_; }
  bool has_gradient() const { return op_.backward != nullptr; }
  bool reads_outputs() const { return (op_.flags & ANABATIC_BACKWARD_READS_OUTPUTS) != 0; }
  const anabatic_op& raw() const { return op_; }

  const ir::OpSchema& schema() const { return schema_; }
  const ir::OpSchema& gradient_schema() const { return gradient_schema_; }
  const kernels::Kernel& kernel() const { return kernel_; }
  const kernels::Kernel& gradient_kernel() const { return gradient_kernel_; }

  // The type of input i's gradient.
  TensorType gradient_type(std::size_t i, TensorType input) const;
  CallPlace place(std::string_view function, std::string_view node = {}) const {
    return {.plugin = file_, .op = name_, .function = function, .node = node};
  }
  // Asks the plugin. A negative number is an error.
  std::int64_t workspace_bytes(PluginCall& call, bool is_backward) const;

  // What the schemas and kernels call.
  std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) const;
  std::vector<TensorType> infer_gradient(ir::Types inputs,
                                         const spec::Attributes& attributes) const;
  ir::Gradients gradient(ir::GraphBuilder& builder, const ir::Node& node,
                         std::span<const std::optional<ir::ValueId>> of_outputs) const;
  ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes& attributes) const;
  ir::Cost gradient_cost(ir::Types inputs, ir::Types outputs,
                         const spec::Attributes& attributes) const;
  bool takes(int input, DType dtype) const;
  std::int64_t forward_workspace(const spec::Problem& problem) const;
  std::int64_t backward_workspace(const spec::Problem& problem) const;
  std::vector<std::byte> prepare(const spec::Problem& problem) const;
  void forward(const kernels::Arguments& arguments) const;
  void backward(const kernels::Arguments& arguments) const;

 private:
  struct Sizes;
  static void add_forward(PluginCall& call, std::span<const TensorView> inputs,
                          std::span<const TensorView> outputs);
  // Adds the operands of a backward, from those of its node. Results come to `places` if it is not
  // empty.
  void add_backward(PluginCall& call, std::span<const TensorView> inputs,
                    std::span<const TensorView> outputs, const spec::Attributes& attributes,
                    const void* prepared, std::span<std::byte* const> places) const;
  void check_operand(const OperandSpec& operand, const TensorType& type, Sizes& sizes) const;
  TensorType output_type(const OperandSpec& output, DType dtype, const Sizes& sizes) const;
  spec::Attributes own_attributes(const spec::Attributes& attributes) const;
  [[noreturn]] void fail(const std::string& message) const;

  anabatic_op op_{};
  std::string file_, name_, gradient_name_, summary_, signature_, gradient_signature_;
  std::string kernel_name_, gradient_kernel_name_;
  std::vector<OperandSpec> inputs_, outputs_;
  spec::Attributes defaults_;
  ir::OpSchema schema_, gradient_schema_;
  kernels::Kernel kernel_{}, gradient_kernel_{};
};

}  // namespace anabatic::plugin
