// SPDX-License-Identifier: Apache-2.0
// Helpers that printer, parser and verifier share: which names need no quotes, and how others are
// quoted.
//
//   text   := "graph" STRING item*
//   item   := "batch" value | "step_input" value
//           | "state" value ["named" STRING] ROLE ["of" STRING]
//             ["rows" DIGITS "+" DIGITS "/" DIGITS] ["frozen"]
//             ["init" ("ones" ["times" NUMBER] | "normal" NUMBER ["zero_row" DIGITS])] ["->" REF]
//           | "output" REF | "objective" REF
//           | value ("," value)* "=" OP "(" [REF ("," REF)*] ")" ["{" WORD "=" ATTRIBUTE, ... "}"]
//             PHASE ["layer=" INTEGER] ["segment=" (WORD | STRING)]
//   value  := REF [STRING] ":" TYPE            REF := "%" DIGITS
//
// White space separates; `#` outside a string starts a comment that ends with its line. `named`
// names a state whose value has another name; `of` names its owner. `rows 4+2/8`: rows 4 and 5
// of 8.
#pragma once
#include <string>
#include <string_view>

namespace anabatic::ir {

constexpr bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-';
}
bool is_word(std::string_view text);       // one or more word characters
std::string quote(std::string_view text);  // "text" with \" and \\ escaped

}  // namespace anabatic::ir
