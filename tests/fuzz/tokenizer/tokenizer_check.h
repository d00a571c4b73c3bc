// SPDX-License-Identifier: Apache-2.0
// What a tokenizer keeps, whatever file it was read from.
#pragma once
#include "fuzz/fuzz_target.h"
#include "io/tokenizer/tokenizer.h"

namespace anabatic::fuzz {

inline constexpr std::string_view kText =
    "ab  [X] A\u00e91\U0001F600 bbab<unk>\tCD'll 2024-abcabcabc\n\n";

inline void check_tokenizer(const io::Tokenizer& tokenizer) {
  read_or_refuse(
      kText, [&] { return tokenizer.encode(kText, true); },
      [&](const std::vector<std::int32_t>& ids) {
        io::TokenStream stream(tokenizer, true);
        std::string text;
        for (const std::int32_t id : ids) {
          require(id >= 0 && id < tokenizer.vocabulary_size(), "ids of the vocabulary");
          text += stream.push(id);
        }
        text += stream.finish();
        require(text == tokenizer.decode(ids, true), "a stream gives the decoded text");
        require(!io::find_invalid_utf8(text), "decoded text is UTF-8");
      });
}

}  // namespace anabatic::fuzz
