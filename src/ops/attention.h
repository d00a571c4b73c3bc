// SPDX-License-Identifier: Apache-2.0
// Attention of rows to a range of keys each (documents, windows, caches), grouped-query heads.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kAttention, kAttentionGradient;

}  // namespace anabatic::ops
