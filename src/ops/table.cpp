// SPDX-License-Identifier: Apache-2.0
#include "ops/table.h"

#include <algorithm>

#include "ops/accumulate.h"
#include "ops/activation.h"
#include "ops/add.h"
#include "ops/attention.h"
#include "ops/cache_write.h"
#include "ops/cast.h"
#include "ops/clip_factor.h"
#include "ops/elementwise/dropout.h"
#include "ops/elementwise/fake_quantize_tokens.h"
#include "ops/embedding.h"
#include "ops/expert_bias.h"
#include "ops/fill.h"
#include "ops/global_norm.h"
#include "ops/join_heads.h"
#include "ops/linear.h"
#include "ops/losses/cross_entropy.h"
#include "ops/losses/head_loss.h"
#include "ops/losses/label_log_probabilities.h"
#include "ops/losses/load_balancing_loss.h"
#include "ops/losses/preference_loss.h"
#include "ops/losses/router_z_loss.h"
#include "ops/norms/layer_norm.h"
#include "ops/norms/norm_statistics.h"
#include "ops/norms/rms_norm.h"
#include "ops/optimizer_step.h"
#include "ops/pack.h"
#include "ops/permute.h"
#include "ops/ranks/dispatch_map.h"
#include "ops/ranks/exchange.h"
#include "ops/ranks/exchange_rows.h"
#include "ops/ranks/reshape.h"
#include "ops/rope.h"
#include "ops/route_sort.h"
#include "ops/router.h"
#include "ops/scale.h"
#include "ops/sparse/pack_sparse.h"
#include "ops/sparse/sparse_linear.h"
#include "ops/sum_rows.h"
#include "ops/sum_squares.h"
#include "ops/unpermute.h"
#include "ops/weights/fake_quantize.h"

namespace anabatic::ops {
namespace {

const ir::OpSchema* const kTable[] = {
    &kAccumulate,
    &kActivation,
    &kActivationGradient,
    &kAdd,
    &kAddNormStatistics,
    &kAddRmsNorm,
    &kAllGather,
    &kAllReduce,
    &kAttention,
    &kAttentionGradient,
    &kCacheWrite,
    &kCast,
    &kClamp,
    &kClampGradient,
    &kClipFactor,
    &kCrossEntropy,
    &kCrossEntropyGradient,
    &kDequantize,
    &kDispatchMap,
    &kDropout,
    &kEmbedding,
    &kEmbeddingWeightGradient,
    &kExchangeRows,
    &kExpertBias,
    &kExpertBiasRouterGradient,
    &kExpertBiasWeightGradient,
    &kFakeQuantize,
    &kFakeQuantizeTokens,
    &kFill,
    &kGateRows,
    &kGateRowsGradient,
    &kGlobalNorm,
    &kGroupedLinear,
    &kGroupedLinearActivation,
    &kGroupedLinearActivationGradient,
    &kGroupedLinearActivationGradientWithWeights,
    &kGroupedLinearActivationWithCodes,
    &kGroupedLinearActivationWithProducts,
    &kGroupedLinearInputGradient,
    &kGroupedLinearMany,
    &kGroupedLinearManyInputGradient,
    &kGroupedLinearManyWeightGradient,
    &kGroupedLinearWeightGradient,
    &kGroupedLinearWeightGradientSquares,
    &kGroupedSparseLinear,
    &kGroupedSparseLinearInputGradient,
    &kGroupedSparseLinearWeightGradient,
    &kHeadLogProbabilities,
    &kHeadLoss,
    &kHeadLossWithGradient,
    &kHeadLossWithInputGradient,
    &kJoinHeads,
    &kJoinHeadsGradient,
    &kLabelLogProbabilities,
    &kLayerNorm,
    &kLayerNormInputGradient,
    &kLayerNormWeightGradient,
    &kLinear,
    &kLinearActivation,
    &kLinearActivationGradient,
    &kLinearActivationWithCodes,
    &kLinearActivationWithProducts,
    &kLinearInputGradient,
    &kLinearMany,
    &kLinearManyInputGradient,
    &kLinearManyWeightGradient,
    &kLinearWeightGradient,
    &kLinearWeightGradientSquares,
    &kLoadBalancingLoss,
    &kLoadBalancingLossGradient,
    &kNormStatistics,
    &kOptimizerStep,
    &kPack,
    &kPackSparse,
    &kPermute,
    &kPermuteGradient,
    &kPreferenceLoss,
    &kQuantize,
    &kReduceScatter,
    &kReload,
    &kReshape,
    &kRmsNorm,
    &kRmsNormInputGradient,
    &kRmsNormWeightGradient,
    &kRope,
    &kRopePair,
    &kRopeTable,
    &kRouteSort,
    &kRouter,
    &kRouterGradient,
    &kRouterZLoss,
    &kRouterZLossGradient,
    &kScale,
    &kScaleBy,
    &kSequenceBalanceLoss,
    &kSequenceBalanceLossGradient,
    &kSinksGradient,
    &kSparseIndex,
    &kSparseLinear,
    &kSparseLinearInputGradient,
    &kSparseLinearWeightGradient,
    &kSumLeaves,
    &kSumRows,
    &kSumSquares,
    &kSumSquaresOfParts,
    &kUnpermute,
    &kUnpermuteGradient,
};

}  // namespace

std::span<const ir::OpSchema* const> all_ops() { return kTable; }

const ir::OpSchema* find_op(std::string_view name) {
  const auto* found = std::lower_bound(
      std::begin(kTable), std::end(kTable), name,
      [](const ir::OpSchema* op, std::string_view wanted) { return op->name < wanted; });
  return found != std::end(kTable) && (*found)->name == name ? *found : nullptr;
}

}  // namespace anabatic::ops
