// SPDX-License-Identifier: Apache-2.0
#include "passes/apply_optimizer.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "base/philox.h"
#include "ops/optimizer_step.h"
#include "passes/derive.h"
#include "passes/differentiate.h"
#include "tensor/dynamic_map.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::ValueId;

constexpr std::string_view kPreviousNorm = "previous_grad_norm";

// Smaller matrices keep their moments in f32: they take few bytes, and a block of several short
// rows mixes values of different sizes.
constexpr std::int64_t kSmallestQuantized = 4096;

struct Trained {
  Name name;
  ValueId parameter, gradient;  // before the update; summed over the micro-batches
  std::int32_t layer;
};

std::vector<Trained> trained_parameters(const Graph& graph) {
  std::vector<Trained> trained;
  for (const ir::State& state : graph.states) {
    if (state.kind() != ir::StateKind::kParameter || !state.is_trainable) continue;
    const ir::State* gradient = graph.find_state(ir::StateRole::kGradient, state.name);
    if (gradient == nullptr) {
      log_warning("[apply_optimizer] parameter '{}' gets no gradient and is not trained",
                  text(state.name));
      continue;
    }
    const ir::NodeId writer = graph.value(gradient->after).producer;
    ANABATIC_CHECK(writer != ir::kNoNode, "[apply_optimizer] nothing writes '{}'",
                   text(gradient->name));
    trained.push_back({state.name, state.before, gradient->after, graph.node(writer).tag.layer});
  }
  return trained;
}

class Optimizer {
 public:
  Optimizer(Graph& graph, const PassContext& context)
      : graph_(graph),
        builder_(graph, context.find_op),
        options_(context.options.optimizer),
        sparsity_(context.options.sparsity),
        delay_(context.options.quantization.delay) {}

  bool run() {
    const std::vector<Trained> trained = trained_parameters(graph_);
    if (trained.empty()) return false;
    learning_rate_ = step_input("learning_rate", tensor_type(DType::kFloat32, {}));
    step_ = step_input("step", tensor_type(DType::kInt32, {}));
    clip(trained);
    for (const Trained& one : trained) update(one);
    return true;
  }

 private:
  void set_layer(std::int32_t layer) {
    builder_.set_tag(
        {.phase = options_.in_backward ? ir::Phase::kBackwardWeight : ir::Phase::kUpdate,
         .layer = layer,
         .segment = intern("optimizer")});
  }

  ValueId step_input(std::string_view name, const TensorType& type) {
    for (const ValueId input : graph_.step_inputs)
      if (text(graph_.value(input).name) == name) return input;
    return builder_.step_input(name, type);
  }

  void clip(const std::vector<Trained>& trained) {
    std::vector<ValueId> sums;
    for (const Trained& one : trained) {
      set_layer(one.layer);
      sums.push_back(sum_squares(one));
      builder_.output(sums.back(), fmt::format("sum_squares.{}", text(one.name)));
    }
    set_layer(-1);
    const ValueId norm = unscale(builder_.add1("global_norm", std::move(sums)));
    builder_.output(norm, "grad_norm");
    clip_factor_ =
        unscale(builder_.add1("clip_factor", {options_.in_backward ? keep_norm(norm) : norm},
                              {{"max_norm", options_.clip_grad_norm}}));
  }

  // Sums what is present, where the parameter has a mask.
  ValueId sum_squares(const Trained& one) {
    const ir::State* mask = graph_.find_state(ir::StateRole::kMask, one.name);
    if (mask == nullptr) return builder_.add1("sum_squares", {one.gradient});
    return builder_.add1("sum_squares", {one.gradient, mask->before}, attributes_of(*mask));
  }

  // Where masks are final, the update before has made 0 what is absent.
  spec::Attributes attributes_of(const ir::State& mask) const {
    spec::Attributes attributes{
        {std::string(spec::kMaskAttribute), std::string(to_string(*mask.pattern))}};
    if (!sparsity_.is_final || spec::mask_block(*mask.pattern) == 1) return attributes;
    const TensorType& type = builder_.type(graph_.find_state(mask.owner)->before);
    attributes[std::string(spec::kKeptAttribute)] =
        spec::kept_blocks(*mask.pattern, type.dim(-2), type.dim(-1),
                          sparsity_.entries.at(static_cast<std::size_t>(mask.entry)).density);
    return attributes;
  }

  // Gradients stay those of the scaled loss: the factor that each update multiplies by undoes it.
  ValueId unscale(ValueId number) {
    if (!find_loss_scale(graph_)) return number;
    return builder_.add1("scale_by",
                         {number, step_input(kInverseLossScale, builder_.type(number))});
  }

  // The norm of the previous step; 0 in the first one.
  ValueId keep_norm(ValueId norm) {
    const ValueId before =
        builder_.state(kPreviousNorm, builder_.type(norm), ir::StateRole::kPreviousNorm);
    graph_.states.back().after = norm;
    return before;
  }

  // Not where gradients of rows differ much in size, as in an embedding. Large ones of a block
  // would round the small ones to 0.
  bool is_quantized(const Trained& one) const {
    const TensorType& type = graph_.value(one.gradient).type;
    if (type.ndim() < 2 || type.num_elements() < kSmallestQuantized) return false;
    const std::vector<ValueId>& parts = graph_.node(graph_.value(one.gradient).producer).inputs;
    return std::none_of(parts.begin(), parts.end(), [&](ValueId part) {
      const ir::NodeId writer = graph_.value(part).producer;
      return writer != ir::kNoNode && graph_.node(writer).op->name == "embedding_weight_gradient";
    });
  }

  void update(const Trained& one) {
    set_layer(one.layer);
    const bool is_matrix = builder_.type(one.parameter).ndim() > 1;
    TensorType type = builder_.type(one.gradient);
    if (options_.moments == spec::MomentPrecision::kBf16 && is_matrix)
      type.dtype = DType::kBFloat16;
    const bool in_8_bits = options_.moments == spec::MomentPrecision::kInt8 && is_quantized(one);
    const bool decays = is_matrix || options_.decay_norms_and_biases;
    const ir::State* lower = graph_.find_state(ir::StateRole::kLower, one.name);
    spec::Attributes attributes = spec::to_attributes(
        spec::OptimizerStep{.rule = spec::UpdateRule::kAdamw, .is_split = lower != nullptr});
    attributes.insert({{"beta1", options_.beta1},
                       {"beta2", options_.beta2},
                       {"epsilon", options_.epsilon},
                       {"weight_decay", decays ? options_.weight_decay : 0.0}});
    if (type.dtype == DType::kBFloat16)
      attributes["stream"] =
          static_cast<std::int64_t>(random_bits(options_.seed, stream_of(text(one.name)), 0) >> 1);
    std::vector<Name> states{one.name};
    std::vector<ValueId> inputs{one.parameter};
    if (lower != nullptr) {
      states.push_back(lower->name);
      inputs.push_back(lower->before);
    }
    inputs.push_back(one.gradient);
    const auto add_state = [&](ir::StateRole role, const TensorType& its_type) {
      inputs.push_back(builder_.state_of(one.name, role, its_type));
      states.push_back(graph_.states.back().name);
    };
    for (const auto& [role, map] : {std::pair{ir::StateRole::kFirstMoment, ElementMap::kDynamic},
                                    {ir::StateRole::kSecondMoment, ElementMap::kDynamicUnsigned}})
      add_state(role, in_8_bits ? quantized(type, moment_format(map)) : type);
    inputs.insert(inputs.end(), {clip_factor_, learning_rate_, step_});
    if (const ir::State* mask = graph_.find_state(ir::StateRole::kMask, one.name)) {
      inputs.push_back(mask->before);
      attributes.merge(attributes_of(*mask));
      // A step that is skipped leaves moments in 8 bits as they were.
      if (in_8_bits) attributes.erase(std::string(spec::kKeptAttribute));
    }
    const auto next =
        builder_.add(ops::kOptimizerStep.name, std::move(inputs), std::move(attributes));
    for (std::size_t i = 0; i < states.size(); ++i) graph_.find_state(states[i])->after = next[i];
    derive(one.name, next[0]);
  }

  // Quantising a matrix once is enough: its second packing is made from the first, whose values it
  // has.
  bool is_made_of(const ir::State& state, const ir::State* first) const {
    if (first == nullptr || &state == first || builder_.type(state.before).layout == kRowMajor)
      return false;
    const TensorType &type = builder_.type(state.before), &of_first = builder_.type(first->before);
    return is_int8_panels(type) ? is_int8_panels(of_first)
                                : state.grid && type.dtype == of_first.dtype;
  }

  void derive(Name parameter, ValueId updated) {
    for (const bool is_second : {false, true}) {
      const ir::State* first = graph_.find_state(ir::StateRole::kPacking, parameter);
      for (ir::State& state : graph_.states) {
        if (state.kind() != ir::StateKind::kDerived || state.owner != parameter ||
            is_second != is_made_of(state, first))
          continue;
        if (is_sparse_index(state)) continue;  // the mask stays
        if (is_sparse_values(state)) {
          const ir::ValueId values = add_sparse_derivation(builder_, updated, state);
          state.after = values;
          continue;
        }
        const TensorType type = builder_.type(state.before);
        state.after = is_second ? add_derivation(builder_, first->after, type)
                                : add_derivation(builder_, updated, state, {delay_, step_});
      }
    }
  }

  Graph& graph_;
  ir::GraphBuilder builder_;
  const spec::OptimizerOptions& options_;
  const spec::SparsityOptions& sparsity_;
  const std::int64_t delay_;  // updates before weights are rounded to their grids
  ValueId learning_rate_{}, step_{}, clip_factor_{};
};

bool apply_optimizer(Graph& graph, const PassContext& context) {
  return context.options.with_update && Optimizer(graph, context).run();
}

}  // namespace

const Pass kApplyOptimizer{.name = "apply_optimizer",
                           .needs = {"gradients_accumulated"},
                           .establishes = {"updated"},
                           .required = true,
                           .run = apply_optimizer};

}  // namespace anabatic::passes
