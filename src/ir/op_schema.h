// SPDX-License-Identifier: Apache-2.0
// What the graph side knows of an op: its arity, shapes, gradient and cost. ops/table.cpp lists the
// ops.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function.h"
#include "ir/graph.h"
#include "spec/product.h"

namespace anabatic::ir {

class GraphBuilder;

struct Cost {
  std::int64_t flops = 0, bytes_read = 0, bytes_written = 0;
};

using Types = std::span<const TensorType>;
using Gradients = std::vector<std::optional<ValueId>>;

inline constexpr int kAnyNumber = -1;

// Per output of a call with these attributes: an input, or -1 for none. Outputs beyond its end have
// none; entries beyond the call's outputs mean nothing.
using Aliases = std::span<const int>;
// The same for all attributes.
template <int... Inputs>
Aliases always(const spec::Attributes&) {
  static constexpr int kInputs[]{Inputs...};
  return kInputs;
}

struct OpSchema {
  std::string_view name;
  const spec::ProductForm* product = nullptr;  // of a product's forms, else null
  // Number of inputs: [min_inputs, max_inputs]; max_inputs -1 is variadic.
  int min_inputs = 0, max_inputs = 0;
  int num_outputs = 1;         // kAnyNumber: as many as infer says
  std::string_view signature;  // "(x [tokens,in], weight [out,in], bias? [out]) -> y [tokens,out]":
                               // for docs and errors

  // Output types from input types; InvalidArgument "[op] expected ..., got ..." when they do not
  // fit.
  Function<std::vector<TensorType>(Types inputs, const spec::Attributes&)> infer{};

  // Gradients of the inputs from those of the outputs (nullopt: none flows); builds nodes, calls no
  // kernel. Null: not differentiable (reaching it with a gradient is an error that names it). A
  // gradient of an activation has the activation's dtype; a gradient of a weight is f32 and its
  // node has phase kBackwardWeight.
  Function<Gradients(GraphBuilder&, const Node&,
                     std::span<const std::optional<ValueId>> of_outputs)>
      gradient{};

  Function<Cost(Types inputs, Types outputs, const spec::Attributes&)> cost{};

  // Whether an input may have a dtype, of an op that the pass precision has no row for; all its
  // floats then have one dtype. Null: the pass knows the op.
  Function<bool(int input, DType)> takes{};

  // The inputs that outputs may overwrite in place, and those whose buffers they are. Null: none.
  Aliases (*may_alias)(const spec::Attributes&) = nullptr;
  Aliases (*must_alias)(const spec::Attributes&) = nullptr;
  // The form that attributes give a call, in words, where they make it another computation: for
  // prices and for people. Null: there is one form.
  std::string (*form)(const spec::Attributes&) = nullptr;
  bool can_accumulate = false;  // kernels honour `+=` on their outputs (weight-gradients)
  bool writes_all = true;  // false: leaves rows untouched, so a first write needs zeroes before it
  // Into how many pieces a call may be cut, one after the other in less workspace, with equal bits:
  // the optional attribute `slices`. Null: into none.
  std::int64_t (*most_slices)(Types inputs, const spec::Attributes&) = nullptr;
};

// The form of a node that is a product; null of any other.
inline const spec::ProductForm* product_form(const Node& node) { return node.op->product; }

// Those of a node: no longer than its outputs.
Aliases may_alias(const Node& node);
Aliases must_alias(const Node& node);
// The op's name, then the form of this call where the op has several.
std::string op_and_form(const Node& node);

// Adds nodes to a graph and infers types. A tag applies to all nodes until it is changed.
class GraphBuilder {
 public:
  GraphBuilder(Graph& graph, FindOp find_op) : graph_(graph), find_op_(find_op) {}

  Graph& graph() { return graph_; }
  const Graph& graph() const { return graph_; }
  void set_tag(Tag tag) { tag_ = tag; }
  const Tag& tag() const { return tag_; }

  // Appends a node; returns its outputs. InvalidArgument when the op is unknown or the types do not
  // fit.
  std::vector<ValueId> add(std::string_view op, std::vector<ValueId> inputs,
                           spec::Attributes attributes = {});
  // For ops of one output; `name` names the value.
  ValueId add1(std::string_view op, std::vector<ValueId> inputs, spec::Attributes attributes = {},
               std::string_view name = {});

  ValueId batch_input(std::string_view name, TensorType type);
  ValueId step_input(std::string_view name, TensorType type);
  // before == after until a pass writes it.
  ValueId state(std::string_view name, TensorType type, StateRole role, Name owner = {});
  ValueId state_of(Name owner, StateRole role, TensorType type);  // likewise, named by its role
  void output(ValueId value, std::string_view name);  // names the value and lists it as an output

  const TensorType& type(ValueId value) const { return graph_.value(value).type; }

 private:
  Graph& graph_;
  FindOp find_op_;
  Tag tag_{};
};

}  // namespace anabatic::ir
