// SPDX-License-Identifier: Apache-2.0
// Characters that utf8proc and the Rust libraries of Hugging Face know from different versions of
// Unicode. (unicode_additions.h has those of regular expressions.)
#pragma once

namespace anabatic::io::tokenizer {

bool is_new_number(char32_t character);             // a number since Unicode 15.1
bool is_unknown_punctuation(char32_t character);    // not yet punctuation in Unicode 7
bool lacks_compatibility_form(char32_t character);  // decomposed only since Unicode 12.1
bool lacks_canonical_form(char32_t character);
bool lacks_combining_class(char32_t character);  // neither ordered nor composed there
bool is_mark_of_unicode_10(char32_t character);  // category M as StripAccents sees it
bool is_new_grapheme_part(char32_t character);   // joins the character before it since Unicode 16
bool is_conjunct_consonant(char32_t character);  // property InCB, which utf8proc does not have
char32_t new_lowercase(char32_t character);      // the lower case given since Unicode 16; 0: none

}  // namespace anabatic::io::tokenizer
