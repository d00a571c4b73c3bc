// SPDX-License-Identifier: Apache-2.0
#include "passes/pipelines.h"

#include <array>
#include <cstdint>

#include "passes/accumulate_gradients.h"
#include "passes/accumulate_in_gemm.h"
#include "passes/apply_optimizer.h"
#include "passes/common_subexpression.h"
#include "passes/dead_code.h"
#include "passes/decided/activation_with_gradient.h"
#include "passes/decided/drop_kept_products.h"
#include "passes/decided/quantize_in_product.h"
#include "passes/decided/read_quantized.h"
#include "passes/decided/recompute.h"
#include "passes/decided/slice_calls.h"
#include "passes/differentiate.h"
#include "passes/fuse_activation.h"
#include "passes/fuse_gate_up.h"
#include "passes/fuse_head_loss.h"
#include "passes/fuse_moe_permute.h"
#include "passes/fuse_optimizer.h"
#include "passes/fuse_qkv.h"
#include "passes/fuse_rope.h"
#include "passes/move_router_weight.h"
#include "passes/norms/fuse_norm_linear.h"
#include "passes/norms/fuse_norm_residual.h"
#include "passes/pack_again.h"
#include "passes/pack_weights.h"
#include "passes/panel_states.h"
#include "passes/precision/fake_quantize.h"
#include "passes/precision/half_gradients.h"
#include "passes/precision/precision.h"
#include "passes/precision/quantize_frozen.h"
#include "passes/precision/quantize_products.h"
#include "passes/precision/raise_products.h"
#include "passes/precision/stream_weights.h"
#include "passes/ranks/fuse_exchange_rows.h"
#include "passes/ranks/reduce_gradients.h"
#include "passes/ranks/shard_experts.h"
#include "passes/ranks/shard_optimizer.h"
#include "passes/ranks/sum_leaves.h"
#include "passes/reload_parameters.h"
#include "passes/slice_optimizer.h"
#include "passes/sparsity/mask_weights.h"
#include "passes/sparsity/sparse_products.h"
#include "passes/split_parameters.h"

namespace anabatic::passes {
namespace {

enum class Runs : std::uint8_t { kTraining, kBoth };

struct Stage {
  const Pass& pass;
  Runs runs;
};

// Every pass once, in order, and why it is where it is.
constexpr std::array kStages{
    // Everything that follows sees the graph of one rank.
    Stage{kShardExperts, Runs::kBoth},
    // Gradients take their dtypes from the activations, so dtypes come first.
    Stage{kPrecision, Runs::kBoth},
    // Weights of products are known, and no packing of them is made yet.
    Stage{kFakeQuantize, Runs::kBoth},
    // Likewise.
    Stage{kMaskWeights, Runs::kTraining},
    // Takes the copies that precision makes, so that no other pass sees them.
    Stage{kQuantizeFrozen, Runs::kBoth},
    // Everything that follows sees forward and backward together.
    Stage{kDifferentiate, Runs::kTraining},
    // Gradients have their dtypes before anything fuses them.
    Stage{kHalfGradients, Runs::kTraining},
    // The contributions that differentiate lists become one state, before anything rewrites them.
    Stage{kAccumulateGradients, Runs::kTraining},
    // Matches the plain product of the head, so before weights are packed or products joined.
    Stage{kFuseHeadLoss, Runs::kBoth},
    // Operands of products are as they will be, and no weight is packed yet.
    Stage{kRaiseProducts, Runs::kBoth},
    // Takes copies of weights before others pack, arrange or split them. Knows single products.
    Stage{kQuantizeProducts, Runs::kBoth},
    // Likewise.
    Stage{kSparseProducts, Runs::kTraining},
    // Knows single products alone, so before the fusions.
    Stage{kPackWeights, Runs::kBoth},
    // Follows the packings: a parameter takes their layout.
    Stage{kPanelStates, Runs::kBoth},
    // Needs a copy in the parameter's own layout, which panel_states has chosen.
    Stage{kSplitParameters, Runs::kBoth},
    // Takes the packings of gate and up along.
    Stage{kFuseActivation, Runs::kBoth},
    // After fuse_activation, so that rows are gathered once for gate and up.
    Stage{kFuseMoePermute, Runs::kBoth},
    // Matches the forms that fuse_activation makes.
    Stage{kMoveRouterWeight, Runs::kBoth},
    // Takes the copies that move_router_weight leaves of the combine.
    Stage{kFuseExchangeRows, Runs::kBoth},
    // Joins what fuse_activation and fuse_moe_permute have left.
    Stage{kFuseGateUp, Runs::kBoth},
    // Likewise for attention.
    Stage{kFuseQkv, Runs::kBoth},
    // After differentiate, so that forward and backward rotations are both there.
    Stage{kFuseRope, Runs::kBoth},
    // The fusions look for weights that are states; after it some are made by a node.
    Stage{kStreamWeights, Runs::kBoth},
    // Likewise. Takes the packings that stream_weights leaves.
    Stage{kPackAgain, Runs::kTraining},
    // Gradients are final, and derived states are known.
    Stage{kApplyOptimizer, Runs::kTraining},
    // Gradients have their layouts, and all that reads them is there.
    Stage{kSumLeaves, Runs::kTraining},
    // Sums over ranks are of a rank's leaves.
    Stage{kReduceGradients, Runs::kTraining},
    // Takes the sums that reduce_gradients makes, before other passes change updates.
    Stage{kShardOptimizer, Runs::kTraining},
    // Takes the sums of squares that apply_optimizer adds into the products.
    Stage{kAccumulateInGemm, Runs::kTraining},
    // Cuts the updates that apply_optimizer makes.
    Stage{kSliceOptimizer, Runs::kTraining},
    // Joins an update, whole or cut, with the packings of its result.
    Stage{kFuseOptimizer, Runs::kTraining},
    // The passes that build gradients know the plain norm alone.
    Stage{kFuseNormResidual, Runs::kBoth},
    // Takes the sums with norms that fuse_norm_residual makes, and knows every form of product.
    Stage{kFuseNormLinear, Runs::kTraining},
    // After every pass that builds nodes.
    Stage{kCommonSubexpression, Runs::kBoth},
    // After every pass that leaves old nodes next to new ones.
    Stage{kDeadCode, Runs::kBoth},
    // Makes copies that common_subexpression would merge.
    Stage{kReloadParameters, Runs::kBoth},
    // The fusions' patterns know no slices.
    Stage{kSliceCalls, Runs::kTraining},
    // Copies nodes as they will run, which common_subexpression would merge.
    Stage{kRecompute, Runs::kTraining},
    // Recomputed operands have no reader in the forward any more.
    Stage{kDropKeptProducts, Runs::kTraining},
    // Takes the `quantize` nodes that recompute adds, of products that are still kept.
    Stage{kQuantizeInProduct, Runs::kTraining},
    // Takes the activations that recompute adds.
    Stage{kActivationWithGradient, Runs::kTraining},
    // An activation that is recomputed by itself would be another reader of what is dequantised.
    Stage{kReadQuantized, Runs::kTraining},
};

template <class Wanted>
std::vector<Pass> stages(Wanted&& wanted) {
  std::vector<Pass> passes;
  for (const Stage& stage : kStages)
    if (wanted(stage)) passes.push_back(stage.pass);
  return passes;
}

}  // namespace

std::vector<Pass> training_pipeline() {
  return stages([](const Stage&) { return true; });
}

std::vector<Pass> decided_pipeline() {
  return stages([](const Stage& stage) { return stage.pass.of_decisions; });
}

std::vector<Pass> inference_pipeline() {
  return stages([](const Stage& stage) { return stage.runs == Runs::kBoth; });
}

const Pass* find_pass(std::string_view name) {
  for (const Stage& stage : kStages)
    if (stage.pass.name == name) return &stage.pass;
  return nullptr;
}

}  // namespace anabatic::passes
