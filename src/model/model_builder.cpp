// SPDX-License-Identifier: Apache-2.0
#include "model/model_builder.h"

#include "base/error.h"
#include "model/blocks/dropout.h"

namespace anabatic::model {
namespace {

std::string joined(std::string_view name, std::string_view end) {
  return std::string(name).append(end);
}

FileView with_end(FileView file, std::string_view end) {
  file.tensor += end;
  return file;
}

}  // namespace

ModelBuilder::ModelBuilder(const ModelSpec& spec, Declarations& declared)
    : spec_(spec), declared_(&declared) {}

ModelBuilder::ModelBuilder(const ModelSpec& spec, ir::GraphBuilder& graph, bool with_mtp,
                           const Dropout& dropout)
    : spec_(spec),
      graph_(&graph),
      parameters_(declare(spec, with_mtp).parameters),
      dropout_(dropout) {
  for (const Parameter& parameter : parameters_) {
    values_.push_back(graph.state(parameter.name(), tensor_type(DType::kFloat32, parameter.shape),
                                  ir::StateRole::kParameter));
    graph.graph().states.back().init = parameter.init;
    graph.graph().states.back().is_trainable = parameter.is_trainable;
  }
}

void ModelBuilder::begin(std::int64_t layer, std::string_view segment) {
  layer_ = layer;
  if (graph_ != nullptr)
    graph_->set_tag({.phase = ir::Phase::kForward,
                     .layer = static_cast<std::int32_t>(layer),
                     .segment = intern(segment)});
}

ir::ValueId ModelBuilder::op(std::string_view op, std::vector<ir::ValueId> inputs,
                             spec::Attributes attributes, std::string_view name) {
  if (graph_ == nullptr) return ir::kNoValue;
  return graph_->add1(op, std::move(inputs), std::move(attributes),
                      name.empty() ? "" : state_name(layer_, name));
}

ir::ValueId ModelBuilder::linear(ir::ValueId x, const Linear& linear) {
  std::vector<ir::ValueId> inputs{x, parameter({.key = joined(linear.name, ".weight"),
                                                .file = with_end(linear.file, ".weight"),
                                                .shape = {linear.out, linear.in},
                                                .init = linear.init.value_or(normal()),
                                                .in_flops = linear.in_flops,
                                                .is_saved_in_f32 = linear.is_saved_in_f32})};
  if (linear.bias)
    inputs.push_back(parameter({.key = joined(linear.name, ".bias"),
                                .file = with_end(linear.file, ".bias"),
                                .shape = {linear.out},
                                .init = linear.bias_init,
                                .in_flops = linear.in_flops}));
  return op("linear", std::move(inputs), {}, linear.name);
}

ir::ValueId ModelBuilder::grouped_linear(ir::ValueId x, ir::ValueId offsets,
                                         const ExpertLinear& linear) {
  const ir::ValueId weight =
      parameter({.key = joined(linear.name, ".weight"),
                 .file = with_end(linear.file, ".weight"),
                 .shape = {linear.experts->num_experts, linear.out, linear.in},
                 .init = normal(),
                 .num_chosen = linear.experts->top_k});
  if (!linear.bias) return op("grouped_linear", {x, weight, offsets}, {}, linear.name);
  return op("grouped_linear", {x, weight, offsets, expert_bias(linear)}, {{"bias", true}},
            linear.name);
}

ir::ValueId ModelBuilder::expert_bias(const ExpertLinear& linear) {
  return parameter({.key = joined(linear.name, ".bias"),
                    .file = with_end(linear.file, ".bias"),
                    .shape = {linear.experts->num_experts, linear.out},
                    .num_chosen = linear.experts->top_k});
}

ir::ValueId ModelBuilder::norm(ir::ValueId x, const Norm& norm) {
  // A deviation of 0 stands for ones.
  const spec::Init init{.rule = spec::Init::Rule::kOnes,
                        .deviation = norm.start == 1 ? 0 : norm.start};
  std::vector<ir::ValueId> inputs{x, parameter({.key = joined(norm.name, ".weight"),
                                                .file = with_end(norm.file, ".weight"),
                                                .shape = {norm.width},
                                                .init = init})};
  const bool is_layer_norm = spec_.norm == NormKind::kLayer;
  if (is_layer_norm)
    inputs.push_back(parameter({.key = joined(norm.name, ".bias"),
                                .file = with_end(norm.file, ".bias"),
                                .shape = {norm.width}}));
  return op(is_layer_norm ? "layer_norm" : "rms_norm", std::move(inputs),
            {{"epsilon", norm.epsilon.value_or(spec_.norm_epsilon)}}, norm.name);
}

ir::ValueId ModelBuilder::activate(const spec::Activation& activation, ir::ValueId gate,
                                   ir::ValueId up, std::string_view name) {
  std::vector<ir::ValueId> inputs{gate};
  if (spec::num_operands(activation) > 1) inputs.push_back(up);
  return op("activation", std::move(inputs), spec::to_attributes(activation), name);
}

ir::ValueId ModelBuilder::dropout(ir::ValueId x, double rate, std::string_view name) {
  if (graph_ == nullptr) return ir::kNoValue;
  const std::string site = state_name(layer_, name);
  return add_dropout(*graph_, x, rate, site, site);
}

ir::ValueId ModelBuilder::parameter(Parameter parameter) {
  parameter.layer = layer_;
  if (graph_ == nullptr) {
    declared_->parameters.push_back(std::move(parameter));
    return ir::kNoValue;
  }
  const std::size_t place = next_++;
  ANABATIC_CHECK(place < values_.size() && parameters_[place].name() == parameter.name(),
                 "[model] expected parameter {} as declared, got {}",
                 place < values_.size() ? parameters_[place].name() : "none", parameter.name());
  return values_[place];
}

void ModelBuilder::repeat(const RepeatedTensor& tensor, std::int64_t num_elements) {
  if (graph_ != nullptr) return;
  declared_->repeated.push_back(tensor);
  declared_->repeated_in_flops += num_elements;
}

void ModelBuilder::count_attention(std::int64_t heads, std::int64_t qk_and_v_width,
                                   std::int64_t window) {
  if (graph_ == nullptr) declared_->attention_widths[window] += heads * qk_and_v_width;
}

spec::Init ModelBuilder::normal() const {
  return {.rule = spec::Init::Rule::kNormal, .deviation = spec_.initializer_range};
}

spec::Init ModelBuilder::residual_normal() const {
  if (spec_.residual_deviation == 0) return normal();
  return {.rule = spec::Init::Rule::kNormal, .deviation = spec_.residual_deviation};
}

}  // namespace anabatic::model
