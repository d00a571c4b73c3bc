// SPDX-License-Identifier: Apache-2.0
// A tokenizer.json that is read encodes text, or refuses to, and decodes the ids.
#include "fuzz/fuzz_target.h"
#include "io/tokenizer/tokenizer.h"

using namespace anabatic;

namespace {

constexpr std::string_view kText = "ab  [X] A\u00e91\U0001F600 bbab<unk>\tCD'll 2024-abcabcabc\n\n";

void check(const io::Tokenizer& tokenizer) {
  fuzz::read_or_refuse(
      kText, [&] { return tokenizer.encode(kText, true); },
      [&](const std::vector<std::int32_t>& ids) {
        io::TokenStream stream(tokenizer, true);
        std::string text;
        for (const std::int32_t id : ids) {
          fuzz::require(id >= 0 && id < tokenizer.vocabulary_size(), "ids of the vocabulary");
          text += stream.push(id);
        }
        text += stream.finish();
        fuzz::require(text == tokenizer.decode(ids, true), "a stream gives the decoded text");
        fuzz::require(!io::find_invalid_utf8(text), "decoded text is UTF-8");
      });
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json = fuzz::view(data, size);
  return fuzz::read_or_refuse(
      json, [&] { return io::Tokenizer::parse(json); }, check);
}
