// SPDX-License-Identifier: Apache-2.0
#include "model/router_losses.h"

#include <fmt/core.h>

#include <array>

namespace anabatic::model {
namespace {

ir::ValueId step_scalar(ir::GraphBuilder& builder, const char* name) {
  return builder.step_input(name, tensor_type(DType::kFloat32, {}));
}

// objective + factor * extra.
ir::ValueId add_scaled(ir::GraphBuilder& builder, ir::ValueId objective, ir::ValueId extra,
                       double factor) {
  const ir::ValueId scaled = builder.add1("scale", {extra}, {{"factor", factor}});
  return builder.add1("add", {objective, scaled});
}

// The mean over layers of `loss_of`, times `factor`.
template <class LossOf>
ir::ValueId mean_over_layers(ir::GraphBuilder& builder, const std::vector<RouterOutputs>& routers,
                             double factor, LossOf&& loss_of) {
  ir::ValueId sum = ir::kNoValue;
  for (const RouterOutputs& router : routers) {
    const ir::ValueId loss = loss_of(router);
    sum = sum == ir::kNoValue ? loss : builder.add1("add", {sum, loss});
  }
  return builder.add1("scale", {sum}, {{"factor", factor / static_cast<double>(routers.size())}});
}

spec::Attributes top_k_of(const RouterOutputs& router) { return {{"top_k", router.top_k}}; }

// Counts and sums of the top-k of softmax(logits). transformers takes these of routers that choose
// otherwise as well.
std::array<ir::ValueId, 2> softmax_load(ir::GraphBuilder& builder, const RouterOutputs& router,
                                        ir::ValueId documents) {
  if (router.chooses_by_softmax) return {router.counts, router.probability_sums};
  const auto all = builder.add("router", {router.logits, documents},
                               spec::to_attributes(spec::RouterForm{.top_k = router.top_k}));
  return {all.at(3), all.at(4)};
}

ir::ValueId balance_loss(ir::GraphBuilder& builder, const BuildOptions& options,
                         ir::ValueId documents, ir::ValueId inverse_real_tokens,
                         const std::vector<RouterOutputs>& routers) {
  switch (options.balance_loss) {
    case BalanceLoss::kAllLayers: {
      std::vector<ir::ValueId> inputs{inverse_real_tokens};
      for (const RouterOutputs& router : routers)
        for (const ir::ValueId value : softmax_load(builder, router, documents))
          inputs.push_back(value);
      return builder.add1("load_balancing_loss", std::move(inputs), top_k_of(routers.front()));
    }
    case BalanceLoss::kSequence: {
      const ir::ValueId inverse_documents = step_scalar(builder, "inverse_documents");
      return mean_over_layers(builder, routers, 1.0, [&](const RouterOutputs& router) {
        return builder.add1("sequence_balance_loss",
                            {inverse_documents, router.probabilities, router.experts, documents});
      });
    }
    case BalanceLoss::kLayer:
    case BalanceLoss::kNone:
      break;
  }
  return mean_over_layers(builder, routers, 1.0 / static_cast<double>(routers.front().top_k),
                          [&](const RouterOutputs& router) {
                            return builder.add1(
                                "load_balancing_loss",
                                {inverse_real_tokens, router.counts, router.probability_sums},
                                top_k_of(router));
                          });
}

}  // namespace

ir::ValueId add_router_losses(ir::GraphBuilder& builder, const BuildOptions& options,
                              ir::ValueId loss, ir::ValueId documents,
                              const std::vector<RouterOutputs>& routers) {
  ir::ValueId objective = loss;
  const ir::ValueId inverse_real_tokens = step_scalar(builder, "inverse_real_tokens");
  const ir::ValueId aux = balance_loss(builder, options, documents, inverse_real_tokens, routers);
  builder.output(aux, "aux_loss");
  if (options.balance_coef != 0 && options.balance_loss != BalanceLoss::kNone)
    objective = add_scaled(builder, objective, aux, options.balance_coef);
  if (options.z_loss_coef != 0) {
    const ir::ValueId z_loss =
        mean_over_layers(builder, routers, 1.0, [&](const RouterOutputs& router) {
          return builder.add1("router_z_loss", {router.logits, documents, inverse_real_tokens});
        });
    builder.output(z_loss, "z_loss");
    objective = add_scaled(builder, objective, z_loss, options.z_loss_coef);
  }
  for (const RouterOutputs& router : routers)
    builder.output(router.counts, fmt::format("expert_load.{}", router.layer));
  return objective;
}

}  // namespace anabatic::model
