// SPDX-License-Identifier: Apache-2.0
// A sample of the host's own data.
#pragma once
#include <cstdint>
#include <vector>

namespace anabatic {

// Tokens of one row of a batch, at most data.sequence_length. A shorter row is padded. Padding is
// masked in attention and in the loss.
struct Sequence {
  std::vector<std::int32_t> tokens;
  // As in transformers: the model predicts labels[i] from the tokens before tokens[i]. -100 is
  // ignored. Empty: labels are the tokens.
  std::vector<std::int32_t> labels{};
  // Lengths of the documents in `tokens`, in their order. Attention and positions stay within a
  // document, and its first token is not predicted. Empty: one document.
  std::vector<std::int64_t> documents{};
};

}  // namespace anabatic
