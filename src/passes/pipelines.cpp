// SPDX-License-Identifier: Apache-2.0
#include "passes/pipelines.h"

#include "passes/accumulate_gradients.h"
#include "passes/accumulate_in_gemm.h"
#include "passes/apply_optimizer.h"
#include "passes/common_subexpression.h"
#include "passes/dead_code.h"
#include "passes/differentiate.h"
#include "passes/fuse_gate_up.h"
#include "passes/fuse_head_loss.h"
#include "passes/fuse_moe_permute.h"
#include "passes/fuse_norm_residual.h"
#include "passes/fuse_optimizer.h"
#include "passes/fuse_qkv.h"
#include "passes/fuse_rope.h"
#include "passes/fuse_swiglu.h"
#include "passes/move_router_weight.h"
#include "passes/pack_again.h"
#include "passes/pack_weights.h"
#include "passes/panel_states.h"
#include "passes/precision.h"
#include "passes/recompute.h"
#include "passes/reload_parameters.h"
#include "passes/slice_calls.h"
#include "passes/slice_optimizer.h"
#include "passes/split_parameters.h"

namespace anabatic::passes {

std::vector<Pass> training_pipeline() {
  std::vector<Pass> passes{
      kPrecision,      kDifferentiate,    kAccumulateGradients, kFuseHeadLoss,
      kPackWeights,    kPanelStates,      kSplitParameters,     kFuseSwiglu,
      kFuseMoePermute, kMoveRouterWeight, kFuseGateUp,          kFuseQkv,
      kFuseRope,       kPackAgain,        kApplyOptimizer,      kAccumulateInGemm,
      kSliceOptimizer, kFuseOptimizer,    kFuseNormResidual,    kCommonSubexpression,
      kDeadCode,       kReloadParameters};
  const std::vector<Pass> decided = decided_pipeline();
  passes.insert(passes.end(), decided.begin(), decided.end());
  return passes;
}

std::vector<Pass> decided_pipeline() { return {kSliceCalls, kRecompute}; }

std::vector<Pass> inference_pipeline() {
  return {kPrecision,  kFuseHeadLoss,     kPackWeights,         kPanelStates, kSplitParameters,
          kFuseSwiglu, kFuseMoePermute,   kMoveRouterWeight,    kFuseGateUp,  kFuseQkv,
          kFuseRope,   kFuseNormResidual, kCommonSubexpression, kDeadCode,    kReloadParameters};
}

const Pass* find_pass(std::string_view name) {
  for (const Pass* pass :
       {&kPrecision,      &kDifferentiate,    &kAccumulateGradients, &kFuseHeadLoss,
        &kPackWeights,    &kPanelStates,      &kSplitParameters,     &kFuseSwiglu,
        &kFuseMoePermute, &kMoveRouterWeight, &kFuseGateUp,          &kFuseQkv,
        &kFuseRope,       &kPackAgain,        &kApplyOptimizer,      &kAccumulateInGemm,
        &kSliceOptimizer, &kFuseOptimizer,    &kFuseNormResidual,    &kCommonSubexpression,
        &kDeadCode,       &kReloadParameters, &kSliceCalls,          &kRecompute})
    if (pass->name == name) return pass;
  return nullptr;
}

}  // namespace anabatic::passes
