// SPDX-License-Identifier: Apache-2.0
// A tokenizer.json or tekken.json that is read encodes text, or refuses to, and decodes the ids.
#include "fuzz/tokenizer/tokenizer_check.h"

using namespace anabatic;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json = fuzz::view(data, size);
  return fuzz::read_or_refuse(
      json, [&] { return io::Tokenizer::parse(json); }, fuzz::check_tokenizer);
}
