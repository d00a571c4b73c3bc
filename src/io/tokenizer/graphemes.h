// SPDX-License-Identifier: Apache-2.0
// Where what readers take for one character ends: extended grapheme clusters (UAX 29, Unicode 17).
#pragma once
#include <cstddef>
#include <string_view>

namespace anabatic::io::tokenizer {

// The end of the cluster that starts at `at` of valid UTF-8.
std::size_t grapheme_end(std::string_view text, std::size_t at);

}  // namespace anabatic::io::tokenizer
