// SPDX-License-Identifier: Apache-2.0
// Dropout in a graph of training.
#pragma once
#include <string>
#include <string_view>

#include "ir/op_schema.h"

namespace anabatic::model {

// x with dropout, or x itself where the rate is 0. `site` tells its draws from those of others
// (spec/dropout.h). The graph gets their batch input with its first dropout.
ir::ValueId add_dropout(ir::GraphBuilder& builder, ir::ValueId x, double rate,
                        const std::string& site, std::string_view name = {});

}  // namespace anabatic::model
