// SPDX-License-Identifier: Apache-2.0
// A tokenizer.model that is read gives a tokenizer.json that is read too, unless it asks for too
// much.
#include "base/json.h"
#include "fuzz/tokenizer/tokenizer_check.h"
#include "io/tokenizer/tokenizer_file.h"

using namespace anabatic;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes = fuzz::view(data, size);
  return fuzz::read_or_refuse(
      bytes,
      [&] {
        return io::Tokenizer::parse(
            dump_json(io::tokenizer::convert_sentencepiece(bytes, "tokenizer.model", true)));
      },
      fuzz::check_tokenizer);
}
