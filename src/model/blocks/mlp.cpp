// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/blocks.h"

namespace anabatic::model {

ir::ValueId add_mlp(ModelBuilder& b, const Mlp& spec, ir::ValueId x, const std::string& name,
                    const std::string& file) {
  const std::int64_t hidden = b.spec().hidden_size;
  const auto linear = [&](ir::ValueId input, const char* part, std::int64_t out, std::int64_t in,
                          const spec::Init& init) {
    return b.linear(input, {.name = name + "." + part,
                            .file = {file + "." + part + "_proj"},
                            .out = out,
                            .in = in,
                            .bias = spec.bias,
                            .init = init});
  };
  const bool is_gated = spec::num_operands(spec.activation) > 1;
  const ir::ValueId gate =
      is_gated ? linear(x, "gate", spec.width, hidden, b.normal()) : ir::kNoValue;
  const ir::ValueId up = linear(x, "up", spec.width, hidden, b.normal());
  const ir::ValueId inner =
      b.activate(spec.activation, is_gated ? gate : up, up, name + ".activation");
  return linear(inner, "down", hidden, spec.width, b.residual_normal());
}

ir::ValueId add_feed_forward(ModelBuilder& b, const Mlp& spec, ir::ValueId x, const LayerInputs&,
                             std::vector<RouterOutputs>&) {
  return add_mlp(b, spec, x, "mlp", "mlp");
}

}  // namespace anabatic::model
