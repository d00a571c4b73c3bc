// SPDX-License-Identifier: Apache-2.0
// The special tokens that are put around an encoded text.
#pragma once
#include <cstdint>
#include <vector>

#include "io/tokenizer/json_fields.h"

namespace anabatic::io::tokenizer {

struct PostProcessor {
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> after;
};

// TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel (which only moves offsets) and
// Sequences of them.
PostProcessor load_post_processor(const JsonNode& node);

}  // namespace anabatic::io::tokenizer
