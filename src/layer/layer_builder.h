// SPDX-License-Identifier: Apache-2.0
// Builds the forward graph of a layer from its signature. Weights are parameters in the graph, so
// that every pass works on it as on a model; layer/split_graph makes inputs of them.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "anabatic/layers.h"
#include "ir/op_schema.h"
#include "ops/table.h"
#include "tensor/tensor_type.h"

namespace anabatic::layer {

DType to_dtype(LayerDtype dtype);
LayerDtype to_layer_dtype(DType dtype);
TensorType to_type(const LayerTensor& tensor);

// A parameter of the graph: all of a weight, some rows of each of its matrices, or the transpose of
// every so many of their columns.
struct WeightPart {
  Name state{};
  std::size_t input = 0;               // index into LayerSignature::inputs
  std::int64_t first_row = 0;          // of each matrix
  std::int64_t rows = 0, of_rows = 0;  // of_rows: the weight's; equal: all of it
  // Its rows are the columns first_column, first_column + column_step, ... of the weight. 0: not
  // so.
  std::int64_t first_column = 0, column_step = 0;

  bool is_of_columns() const { return column_step > 0; }
  bool is_whole() const { return !is_of_columns() && rows == of_rows; }
};

// Values that an integer input may have: [low, high], and `ignored`.
struct IntegerRange {
  std::size_t input = 0;
  std::int64_t low = 0, high = 0;
  std::optional<std::int64_t> ignored{};
  bool never_falls = false;    // from one element to the next
  bool has_both_ends = false;  // the first is `low`, the last `high`: offsets of groups
};

struct LayerGraph {
  ir::Graph graph;
  std::vector<WeightPart> parts;
  std::vector<IntegerRange> ranges;
  // Inputs of the graph that are no weights and whose gradients the signature asks for.
  std::vector<std::string> wanted_inputs;
  // Names of the outputs.
  std::vector<std::string> outputs;
};

// A layer inside another: its own signature, and what its operands are there.
struct LayerPart {
  struct Operand {
    std::size_t input = 0;             // index into the inputs of the whole,
    ir::ValueId value = ir::kNoValue;  // or a value that another part has made
  };
  LayerSignature signature;
  std::vector<Operand> operands;     // by index into signature.inputs
  std::optional<LayerDtype> result;  // the dtype of its output; none: as the layer says
  std::string segment;               // of its nodes; "": as the layer says
};
struct PartResult {
  ir::ValueId value = ir::kNoValue;
  LayerDtype dtype = LayerDtype::kFloat32;
};

struct LayerRow;

class LayerBuilder {
 public:
  // `in_double`: all floats are f64, for the reference of tests.
  LayerBuilder(const LayerSignature& signature, bool in_double, ir::FindOp find_op = ops::find_op);

  bool has(std::string_view operand) const { return find(operand) != nullptr; }
  std::int64_t dim(std::string_view operand, std::int64_t axis) const;
  LayerDtype dtype(std::string_view operand) const;
  // That of the part while one is built.
  const LayerSignature& signature() const {
    return part_ != nullptr ? part_->signature : signature_;
  }
  const TensorType& type(ir::ValueId value) const { return builder_.type(value); }
  // InvalidArgument unless the axes have one size.
  void same_dim(std::string_view a, std::int64_t axis_a, std::string_view b,
                std::int64_t axis_b) const;
  void same_dtype(std::string_view a, std::string_view b) const;
  [[noreturn]] void fail(const std::string& message) const;

  // Attributes, with a value for absent ones where it is given.
  double number(std::string_view key, std::optional<double> fallback = {}) const;
  std::int64_t integer(std::string_view key, std::optional<std::int64_t> fallback = {}) const;
  std::string word(std::string_view key, const std::string& fallback) const;
  // The attributes of an op with an activation: `activation`, and `alpha` and `limit`.
  spec::Attributes activation() const;

  // For a dense product whose result has the dtype of this operand, which need not be that of
  // products: it is rounded once.
  spec::Attributes output_dtype(std::string_view operand) const;

  // The operand as it comes, in f32, or in the dtype of products. An integer is i32.
  ir::ValueId input(std::string_view operand);
  ir::ValueId precise(std::string_view operand);
  ir::ValueId rounded(std::string_view operand);
  // A matrix or a stack, in the dtype of products: all rows, or some of each matrix.
  ir::ValueId weight(std::string_view operand);
  ir::ValueId weight_rows(std::string_view operand, std::string_view part, std::int64_t first,
                          std::int64_t rows);
  // The transpose of the columns first, first + step, ... of each matrix.
  ir::ValueId weight_columns(std::string_view operand, std::string_view part, std::int64_t first,
                             std::int64_t step);
  ir::ValueId vector(std::string_view operand);  // in f32
  // What the values of an integer operand may be.
  void limit(std::string_view operand, IntegerRange range);

  void begin(std::string_view segment);
  ir::ValueId op(std::string_view name, std::vector<ir::ValueId> inputs,
                 spec::Attributes attributes = {}, std::string_view value_name = {});
  // All outputs of an op.
  std::vector<ir::ValueId> outputs_of(std::string_view name, std::vector<ir::ValueId> inputs,
                                      spec::Attributes attributes) {
    return builder_.add(name, std::move(inputs), std::move(attributes));
  }
  template <std::size_t N>
  std::array<ir::ValueId, N> ops(std::string_view name, std::vector<ir::ValueId> inputs,
                                 spec::Attributes attributes = {}) {
    const std::vector<ir::ValueId> outputs =
        outputs_of(name, std::move(inputs), std::move(attributes));
    std::array<ir::ValueId, N> result;
    for (std::size_t i = 0; i < N; ++i) result[i] = outputs.at(i);
    return result;
  }
  // In the dtype of an operand, which is f64 in double.
  ir::ValueId in_dtype(ir::ValueId value, LayerDtype dtype);
  void output(ir::ValueId value, std::string_view name, LayerDtype dtype);
  // The scalar output is differentiated: gradients are made in the forward, for a seed of 1.
  void objective(ir::ValueId value);
  // Builds a layer with one output into this one.
  PartResult build_part(const LayerRow& row, const LayerPart& part);
  // Where the gradient of `operand` is asked for, that of `other` is made too.
  void differentiate_with(std::string_view operand, std::string_view other);

  LayerGraph finish();

 private:
  const LayerTensor* find(std::string_view operand) const;
  const LayerTensor& at(std::string_view operand) const;
  // Index into the inputs of the whole.
  std::size_t index_of(std::string_view operand) const;
  // The value that another part has made for this operand; kNoValue where it is an input.
  ir::ValueId made_for(std::string_view operand) const;
  bool wants(std::string_view operand) const;
  DType real(DType dtype) const;
  ir::ValueId cast(ir::ValueId value, DType dtype);
  ir::ValueId add_weight(std::string_view operand, std::string_view name, WeightPart part,
                         TensorType type, bool in_products);

  const LayerSignature& signature_;
  const LayerPart* part_ = nullptr;       // that is built now
  std::vector<PartResult> part_results_;  // its outputs
  bool in_double_;
  LayerGraph result_;
  ir::GraphBuilder builder_;
  DType products_;  // of the operands of products: by the attribute `products`, else that of x
  std::vector<std::string> gradients_;  // the signature's, and what is made with them
  // One for all readers, so that their gradients are summed before it.
  std::map<std::pair<ir::ValueId, DType>, ir::ValueId> casts_;
  std::vector<ir::ValueId> inputs_;  // by index into the signature's; kNoValue: not read yet
};

}  // namespace anabatic::layer
