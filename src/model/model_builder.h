// SPDX-License-Identifier: Apache-2.0
// Adds a model's ops to a graph. A parameter is declared where it is used, with its file name,
// shape and initial values. Everything is f32 here; passes choose the precision.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/op_schema.h"
#include "model/declarations.h"

namespace anabatic::model {

// Parameters NAME.weight [out, in] and NAME.bias [out]. Names in files get the same endings.
struct Linear {
  std::string_view name;
  FileView file;
  std::int64_t out = 0, in = 0;
  bool bias = false;
  std::optional<spec::Init> init{};  // of the weight; absent: normal, by initializer_range
  spec::Init bias_init{};            // zeroes
  bool in_flops = true;
  bool is_saved_in_f32 = false;  // the weight
};

// A matrix [out, in] for each expert in one parameter NAME.weight [num_experts, out, in], and
// perhaps a bias in NAME.bias [num_experts, out]. Files have names with "{}" and the same endings.
struct ExpertLinear {
  std::string_view name;
  FileView file;
  std::int64_t out = 0, in = 0;
  const Moe* experts = nullptr;
  bool bias = false;
};

// NAME.weight [width], initialised to ones times `start`, and NAME.bias where the model's norms
// have one.
struct Norm {
  std::string_view name;
  FileView file;
  std::int64_t width = 0;
  std::optional<double> epsilon{};  // absent: the model's
  double start = 1;
};

class ModelBuilder {
 public:
  // Only declares parameters. All values are kNoValue.
  ModelBuilder(const ModelSpec& spec, Declarations& declared);
  // Adds a state for each parameter of declare(spec, with_mtp), then ops as functions are called.
  // The graph outlives the builder.
  ModelBuilder(const ModelSpec& spec, ir::GraphBuilder& graph, bool with_mtp,
               const Dropout& dropout = {});

  const ModelSpec& spec() const { return spec_; }
  const Dropout& dropout_rates() const { return dropout_; }
  // Only for a builder with a graph.
  ir::GraphBuilder& graph() { return *graph_; }

  // Ops and parameters that follow belong to this layer (-1: none) and segment. Their names get the
  // layer's prefix.
  void begin(std::int64_t layer, std::string_view segment);
  void begin(std::string_view segment) { begin(layer_, segment); }  // of the same layer
  std::int64_t layer() const { return layer_; }

  // Adds an op. `op` names and returns its first result, `ops` returns the first N.
  ir::ValueId op(std::string_view op, std::vector<ir::ValueId> inputs,
                 spec::Attributes attributes = {}, std::string_view name = {});
  template <std::size_t N>
  std::array<ir::ValueId, N> ops(std::string_view op, std::vector<ir::ValueId> inputs,
                                 spec::Attributes attributes = {}) {
    std::array<ir::ValueId, N> results;
    results.fill(ir::kNoValue);
    if (graph_ == nullptr) return results;
    const auto all = graph_->add(op, std::move(inputs), std::move(attributes));
    for (std::size_t i = 0; i < N; ++i) results[i] = all.at(i);
    return results;
  }

  ir::ValueId linear(ir::ValueId x, const Linear& linear);
  // Rows [offsets[e], offsets[e + 1]) times the matrix of expert e.
  ir::ValueId grouped_linear(ir::ValueId x, ir::ValueId offsets, const ExpertLinear& linear);
  // NAME.bias of an ExpertLinear.
  ir::ValueId expert_bias(const ExpertLinear& linear);
  // Normalises each group of norm.width columns.
  ir::ValueId norm(ir::ValueId x, const Norm& norm);
  // The activation of a feed-forward block; `up` is unused where it has one operand.
  ir::ValueId activate(const spec::Activation& activation, ir::ValueId gate, ir::ValueId up,
                       std::string_view name);

  // x with dropout, which is x where the rate is 0. The name tells its draws from others'.
  ir::ValueId dropout(ir::ValueId x, double rate, std::string_view name);

  // Declares a parameter and returns its value.
  ir::ValueId parameter(Parameter parameter);
  // Declares that a parameter is used once more, in place of a tensor that files may hold.
  void repeat(const RepeatedTensor& tensor, std::int64_t num_elements);
  // Counts a layer's attention for model FLOPs; `qk_and_v_width` is d_qk + d_v.
  void count_attention(std::int64_t heads, std::int64_t qk_and_v_width, std::int64_t window);
  spec::Init normal() const;           // of a matrix
  spec::Init residual_normal() const;  // of the last matrix of attention or of an MLP

 private:
  const ModelSpec& spec_;
  ir::GraphBuilder* graph_ = nullptr;
  Declarations* declared_ = nullptr;  // without a graph
  // With a graph: the declared parameters, their values, and the index of the next one to be used.
  std::deque<Parameter> parameters_{};
  std::vector<ir::ValueId> values_{};
  std::size_t next_ = 0;
  Dropout dropout_{};
  std::int64_t layer_ = -1;
};

}  // namespace anabatic::model
