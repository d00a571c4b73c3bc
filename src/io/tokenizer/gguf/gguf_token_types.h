// SPDX-License-Identifier: Apache-2.0
// The numbers of `tokenizer.ggml.token_type`, which are SentencePiece's.
#pragma once
#include <cstdint>

namespace anabatic::io::tokenizer {

enum class GgufTokenType : std::uint8_t {
  kNormal = 1,
  kUnknown,
  kControl,
  kUserDefined,
  kUnused,
  kByte
};

}  // namespace anabatic::io::tokenizer
