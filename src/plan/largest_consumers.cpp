// SPDX-License-Identifier: Apache-2.0
#include "plan/largest_consumers.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "ir/op_schema.h"
#include "plan/account.h"
#include "plan/offload.h"

namespace anabatic::plan {
namespace {

// A remedy that a step with this plan has not used yet.
std::string_view remedy_of_moments(const ir::Graph& graph, const Plan& plan) {
  if (!plan.windows.empty())
    return "fewer memory.swap_windows, or a smaller memory.swap_slice, keep less of it in memory "
           "at once";
  bool is_fp32 = true;
  for (const ir::State& state : graph.states) {
    const TensorType& type = graph.value(state.before).type;
    if (state.kind() != ir::StateKind::kOptimizer) continue;
    if (type.is_quantized()) return "memory.optimizer_state: disk moves it";
    is_fp32 &= type.dtype != DType::kBFloat16;
  }
  return is_fp32 ? "optimizer.state_precision: bf16 takes half of it, int8 a quarter, "
                   "memory.optimizer_state: disk moves it"
                 : "optimizer.state_precision: int8 takes half of it, memory.optimizer_state: disk "
                   "moves it";
}

bool updates_in_backward(const ir::Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const ir::Node& node) {
    return node.is_of_update() && node.tag.phase != ir::Phase::kUpdate;
  });
}

}  // namespace

bool has_second_packings(const ir::Graph& graph) {
  return std::any_of(graph.states.begin(), graph.states.end(), [](const ir::State& state) {
    return state.role == ir::StateRole::kPackingTransposed;
  });
}

bool has_packings(const ir::Graph& graph) {
  return has_second_packings(graph) ||
         std::any_of(graph.states.begin(), graph.states.end(),
                     [](const ir::State& state) { return state.role == ir::StateRole::kPacking; });
}

std::vector<Consumer> largest_consumers(const ir::Graph& graph, const Plan& plan) {
  struct Taker {
    std::string_view name, remedy;
    std::vector<Use> uses;
  };
  const std::vector<Taker> takers{
      {"optimizer state", remedy_of_moments(graph, plan), {Use::kOptimizer}},
      {"gradients",
       plan.has_gradients_in_frame() && !updates_in_backward(graph)
           ? "optimizer.update: in_backward frees each one at once"
       : plan.has_gradients_in_frame()
           ? "a smaller model"
           : "train.gradient_accumulation_steps: 1 lets them share memory with activations",
       {Use::kGradients}},
      {"parameters",
       !reloaded_parameters(graph).empty() ? "a smaller model"
                                           : "memory.parameters: disk, or a smaller model",
       {Use::kParameters}},
      {"packings and copies of weights",
       has_second_packings(graph) ? "compiler.pack_transposed: false keeps one of two"
       : has_packings(graph)      ? "compiler.keep_packings: false keeps none"
                                  : "a smaller model",
       {Use::kPackings}},
      {kActivations,
       "a smaller train.micro_batch_size or data.sequence_length",
       {Use::kSaved, Use::kScratch, Use::kWorkspace, Use::kSlack}}};
  const Account account = make_account(graph, plan);
  std::vector<Consumer> consumers;
  for (const Taker& taker : takers) {
    std::int64_t bytes = 0;
    for (const Use use : taker.uses) bytes += account.bytes(use);
    if (bytes > account.peak_bytes / 100)
      consumers.push_back({std::string(taker.name), bytes, std::string(taker.remedy)});
  }
  std::stable_sort(consumers.begin(), consumers.end(),
                   [](const Consumer& x, const Consumer& y) { return x.bytes > y.bytes; });
  return consumers;
}

}  // namespace anabatic::plan
