// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/blocks.h"

namespace anabatic::model {

ir::ValueId add_feed_forward(ModelBuilder& b, const Mlp& spec, ir::ValueId x, const LayerInputs&,
                             std::vector<RouterOutputs>&) {
  const std::int64_t hidden = b.spec().hidden_size;
  const auto linear = [&](ir::ValueId input, const char* name, const char* file, std::int64_t out,
                          std::int64_t in) {
    return b.linear(input, {.name = name, .file = {file}, .out = out, .in = in, .bias = spec.bias});
  };
  const ir::ValueId gate = linear(x, "mlp.gate", "mlp.gate_proj", spec.width, hidden);
  const ir::ValueId up = linear(x, "mlp.up", "mlp.up_proj", spec.width, hidden);
  const ir::ValueId inner = b.activate(spec.activation, gate, up, "mlp.activation");
  return linear(inner, "mlp.down", "mlp.down_proj", hidden, spec.width);
}

}  // namespace anabatic::model
