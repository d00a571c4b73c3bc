// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/dropout.h"

#include "spec/dropout.h"

namespace anabatic::model {

ir::ValueId dropout_draws(ir::GraphBuilder& builder) {
  for (const ir::ValueId input : builder.graph().batch)
    if (text(builder.graph().value(input).name) == spec::kDropoutDraws) return input;
  return builder.batch_input(spec::kDropoutDraws,
                             tensor_type(DType::kInt32, {spec::kNumDropoutDraws}));
}

ir::ValueId add_dropout(ir::GraphBuilder& builder, ir::ValueId x, double rate,
                        const std::string& site, std::string_view name) {
  if (rate == 0) return x;
  return builder.add1("dropout", {x, dropout_draws(builder)}, {{"rate", rate}, {"site", site}},
                      name);
}

}  // namespace anabatic::model
