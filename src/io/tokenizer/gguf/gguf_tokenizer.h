// SPDX-License-Identifier: Apache-2.0
// The tokenizer in a GGUF file, `tokenizer.ggml.*` and `tokenizer.chat_template`, as the files of a
// Hugging Face directory, and back.
//   gpt2     byte-level BPE; `pre` names the patterns that cut words (gguf_pre.h)
//   llama    SentencePiece's BPE, by scores
// A file may hold a whole tokenizer.json too, under tokenizer.huggingface.json. It comes first.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "io/gguf.h"
#include "io/gguf_writer.h"

namespace anabatic::io {

bool has_gguf_tokenizer(const GgufMetadata& metadata);

// The document of tokenizer.json, and its text. InvalidArgument and Unsupported name the key.
nlohmann::json gguf_tokenizer_document(const GgufMetadata& metadata);
std::string gguf_tokenizer_json(const GgufMetadata& metadata);

// The text of tokenizer_config.json, and of chat_template.jinja ("" where the file has none).
std::string gguf_tokenizer_config(const GgufMetadata& metadata);
std::string gguf_chat_template(const GgufMetadata& metadata);

// What is written in addition to the tokenizer itself.
struct GgufTokenizerFields {
  std::int64_t vocab_size = 0;  // of the model: ids beyond the tokenizer's are unused tokens
  std::optional<std::int64_t> bos{}, eos{}, unknown{}, padding{};
  bool adds_bos = false, adds_eos = false;
  std::string chat_template{};
};

// Adds the keys that stand for a tokenizer.json. Unsupported names the component that llama.cpp has
// no place for.
void add_gguf_tokenizer(std::string_view tokenizer_json, const GgufTokenizerFields& fields,
                        GgufKeys& keys);
void add_no_gguf_tokenizer(GgufKeys& keys);

}  // namespace anabatic::io
