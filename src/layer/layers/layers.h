// SPDX-License-Identifier: Apache-2.0
// The functions that build layers. layer/layer_table.cpp has their operands and attributes.
#pragma once

namespace anabatic::layer {

class LayerBuilder;

void add(LayerBuilder& b);
void add_rms_norm(LayerBuilder& b);
void attention(LayerBuilder& b);
void cast(LayerBuilder& b);
void gated_mlp(LayerBuilder& b);
void grouped_linear(LayerBuilder& b);
void linear(LayerBuilder& b);
void linear_cross_entropy(LayerBuilder& b);
void mlp(LayerBuilder& b);
void moe_experts(LayerBuilder& b);
void region(LayerBuilder& b);
void rms_norm(LayerBuilder& b);
void rope(LayerBuilder& b);
void swiglu(LayerBuilder& b);

}  // namespace anabatic::layer
