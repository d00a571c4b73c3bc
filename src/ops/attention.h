// SPDX-License-Identifier: Apache-2.0
// Attention of each row to a range of keys (documents, windows, caches), with grouped-query heads.
// A sink of a head is one more score in each row's softmax, of a key without a value. Lists of key
// blocks (spec/key_blocks.h) leave out blocks of that range.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kAttention, kAttentionGradient, kSinksGradient;

}  // namespace anabatic::ops
