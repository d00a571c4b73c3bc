// SPDX-License-Identifier: Apache-2.0
// The file that holds a model's tokenizer: tokenizer.json, or one that is read as the
// tokenizer.json it is equal to.
//   tekken.json        byte-level BPE of mistral_common
//   tokenizer.model    SentencePiece: BPE or Unigram
//   a GGUF file        gguf_tokenizer.h
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace anabatic::io {

// The first of tokenizer.json, tekken.json and tokenizer.model that a model directory has. Of a
// GGUF file: itself, or without a tokenizer in it the first in its folder.
std::optional<std::filesystem::path> find_tokenizer_file(const std::filesystem::path& model);

// The text of the tokenizer.json that `file` is or is equal to. Hugging Face `tokenizers` loads it.
std::string tokenizer_json(const std::filesystem::path& file);

namespace tokenizer {

// The document of any of them. A tokenizer.model begins with its BOS, as `transformers` has
// it, unless tokenizer_config.json in its folder says add_bos_token: false.
nlohmann::json read_document(const std::filesystem::path& file);

// From the text of a tokenizer.json or tekken.json; `name` stands for the file in errors.
nlohmann::json parse_document(std::string_view json, std::string_view name);

// From the bytes of a tokenizer.model. Control pieces become special tokens. User-defined pieces of
// a BPE become added tokens, which are found in the normalised text.
nlohmann::json convert_sentencepiece(std::string_view bytes, std::string_view name, bool adds_bos);

// From a tekken.json. `place` begins the errors.
nlohmann::json convert_tekken(const nlohmann::json& tekken, const std::string& place);

// Parts that both conversions write.
nlohmann::json added_token(std::int32_t id, std::string_view content, bool is_special);
nlohmann::json begin_with(std::string_view token, std::int32_t id);  // a post-processor
nlohmann::json empty_document();

}  // namespace tokenizer
}  // namespace anabatic::io
