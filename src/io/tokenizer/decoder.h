// SPDX-License-Identifier: Apache-2.0
// Tokens back to text.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "io/tokenizer/json_fields.h"
#include "io/tokenizer/regex.h"

namespace anabatic::io::tokenizer {

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Changes the row of token texts, of which decoding finally joins what is left.
  virtual void apply(std::vector<std::string>& tokens, RegexScratch& scratch) const = 0;
};

// A chain in order of application; Sequences are flattened.
using Decoders = std::vector<std::unique_ptr<const Decoder>>;
Decoders load_decoders(const JsonNode& node);

}  // namespace anabatic::io::tokenizer
