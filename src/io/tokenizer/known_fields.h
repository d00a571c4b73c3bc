// SPDX-License-Identifier: Apache-2.0
// Which fields of a tokenizer.json are read; any other is warned about, as one of config.json is.
#pragma once
#include "io/tokenizer/json_fields.h"

namespace anabatic::io::tokenizer {

// One warning names every field of the document `root` that nothing here reads, up to eight.
void warn_of_unknown_fields(const JsonNode& root);

}  // namespace anabatic::io::tokenizer
