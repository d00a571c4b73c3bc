// SPDX-License-Identifier: Apache-2.0
// Dropout in a graph of training.
#pragma once
#include <string>
#include <string_view>

#include "ir/op_schema.h"

namespace anabatic::model {

// The draws that all dropout of the graph reads: a batch input, added with the first dropout.
ir::ValueId dropout_draws(ir::GraphBuilder& builder);

// x with dropout, or x itself where the rate is 0. `site` tells its draws from those of others
// (spec/dropout.h).
ir::ValueId add_dropout(ir::GraphBuilder& builder, ir::ValueId x, double rate,
                        const std::string& site, std::string_view name = {});

}  // namespace anabatic::model
