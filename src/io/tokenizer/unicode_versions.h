// SPDX-License-Identifier: Apache-2.0
// Characters that the libraries here and those of Hugging Face know from different versions of
// Unicode: PCRE2 may have 14.0, Oniguruma there has 16.0; other tables there are older or newer.
#pragma once
#include <string>
#include <string_view>

namespace anabatic::io::tokenizer {

// If `text` (valid UTF-8) holds characters of Unicode 15.0 to 16.0, puts a copy into `known` in
// which each is replaced by an older one of the same category and length, and returns true.
bool replace_new_characters(std::string_view text, std::string& known);

bool is_new_number(char32_t character);             // a number since Unicode 15.1
bool is_unknown_punctuation(char32_t character);    // not yet punctuation in Unicode 7
bool lacks_compatibility_form(char32_t character);  // decomposed only since Unicode 12.1
bool lacks_canonical_form(char32_t character);
char32_t new_lowercase(char32_t character);  // the lower case given since Unicode 16; 0: none

}  // namespace anabatic::io::tokenizer
