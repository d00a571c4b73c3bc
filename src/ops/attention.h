// SPDX-License-Identifier: Apache-2.0
// Attention of each row to a range of keys (documents, windows, caches), with grouped-query heads.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kAttention, kAttentionGradient;

}  // namespace anabatic::ops
