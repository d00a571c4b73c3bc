// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "layer/layer_builder.h"
#include "layer/layers/layers.h"

namespace anabatic::layer {

void attention(LayerBuilder& b) {
  const std::int64_t num_heads = b.integer("num_heads"),
                     num_kv_heads = b.integer("num_kv_heads", num_heads);
  if (num_heads < 1 || b.dim("q", 1) % num_heads != 0)
    b.fail("expected the columns of q to be a multiple of num_heads, got " +
           std::to_string(b.dim("q", 1)) + " and " + std::to_string(num_heads));
  for (const char* operand : {"k", "v"}) b.same_dtype(operand, "q");
  for (const char* operand : {"key_begin", "key_end"}) {
    b.same_dim(operand, 0, "q", 0);
    b.limit(operand, {.low = 0, .high = b.dim("k", 0), .never_falls = true});
  }
  const auto width = static_cast<double>(b.dim("q", 1) / num_heads);
  b.begin("attention");
  std::vector<ir::ValueId> operands{b.rounded("q"), b.rounded("k"), b.rounded("v"),
                                    b.input("key_begin"), b.input("key_end")};
  if (b.has("sinks")) operands.push_back(b.vector("sinks"));
  const auto [out, lse] = b.ops<2>("attention", std::move(operands),
                                   {{"num_heads", num_heads},
                                    {"num_kv_heads", num_kv_heads},
                                    {"scale", b.number("scale", 1 / std::sqrt(width))},
                                    {"window", b.integer("window", 0)}});
  b.output(out, "y", b.dtype("q"));
}

}  // namespace anabatic::layer
