// SPDX-License-Identifier: Apache-2.0
// A tokenizer with one token a letter, for tests that read what a model writes.
#pragma once
#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace anabatic::testing {

// a..z are 0..25, space 26, the full stop 27; then the special tokens of this list.
enum LetterToken { kEndOfText = 28, kImEnd = 29, kBos = 30 };

// A post-processor that puts <s> in front of a text.
inline constexpr const char* kBosProcessor =
    R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [30], "tokens": ["<s>"]}}})";

// Writes DIRECTORY/tokenizer.json, and tokenizer_config.json with this text unless it is empty.
inline void write_letter_tokenizer(const std::filesystem::path& directory,
                                   const std::string& config,
                                   const std::string& post_processor = "null") {
  std::string vocabulary, added;
  int id = 0;
  for (const char c : std::string("abcdefghijklmnopqrstuvwxyz ."))
    vocabulary += fmt::format("{}\"{}\": {}", id == 0 ? "" : ", ", c, id), ++id;
  for (const char* token : {"<|endoftext|>", "<|im_end|>", "<s>"})
    added += fmt::format(
        R"({}{{"id": {}, "content": "{}", "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true}})",
        added.empty() ? "" : ", ", id++, token);
  std::ofstream(directory / "tokenizer.json") << fmt::format(
      R"({{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{}],
          "normalizer": null, "pre_tokenizer": null, "post_processor": {},
          "decoder": {{"type": "Fuse"}},
          "model": {{"type": "BPE", "vocab": {{{}}}, "merges": []}}}})",
      added, post_processor, vocabulary);
  if (!config.empty()) std::ofstream(directory / "tokenizer_config.json") << config;
}

}  // namespace anabatic::testing
