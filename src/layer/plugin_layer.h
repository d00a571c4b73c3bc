// SPDX-License-Identifier: Apache-2.0
// An op of a plugin as a layer.
#pragma once
#include "layer/layer_table.h"
#include "plugin/plugin_op.h"

namespace anabatic::layer {

// Its row, made once. It stays, as plugins do.
const LayerRow& plugin_row(const plugin::PluginOp& op);

}  // namespace anabatic::layer
