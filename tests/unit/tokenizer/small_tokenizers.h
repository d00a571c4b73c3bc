// SPDX-License-Identifier: Apache-2.0
// Small tokenizer.json documents, from parts.
#pragma once
#include <fmt/core.h>

#include <string>
#include <string_view>

namespace anabatic::io {

// Parts of a tokenizer.json as JSON text.
struct Parts {
  std::string added_tokens = "[]";
  std::string normalizer = "null";
  std::string pre_tokenizer = "null";
  std::string post_processor = "null";
  std::string decoder = "null";
  std::string model;
};

inline std::string document(const Parts& parts) {
  return fmt::format(
      R"({{"version": "1.0", "truncation": null, "padding": null, "added_tokens": {}, )"
      R"("normalizer": {}, "pre_tokenizer": {}, "post_processor": {}, "decoder": {}, )"
      R"("model": {}}})",
      parts.added_tokens, parts.normalizer, parts.pre_tokenizer, parts.post_processor,
      parts.decoder, parts.model);
}

// A model with a vocabulary and merges as JSON text; `more` is further fields with a leading comma.
inline std::string bpe(std::string_view vocab, std::string_view merges,
                       std::string_view more = "") {
  return fmt::format(R"({{"type": "BPE", "vocab": {}, "merges": {}{}}})", vocab, merges, more);
}

// a b c = 0 1 2, ab = 3, abc = 4, bc = 5, space = 6; ab is merged before bc.
inline std::string abc_model(std::string_view more = "") {
  return bpe(R"({"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "bc": 5, " ": 6})",
             R"(["a b", ["b", "c"], "ab c"])", more);
}

inline std::string added(int id, std::string_view content, std::string_view true_flags = "") {
  const auto flag = [&](std::string_view name) {
    return true_flags.find(name) == std::string_view::npos ? "false" : "true";
  };
  return fmt::format(R"({{"id": {}, "content": "{}", "single_word": {}, "lstrip": {}, )"
                     R"("rstrip": {}, "normalized": {}, "special": {}}})",
                     id, content, flag("single_word"), flag("lstrip"), flag("rstrip"),
                     flag("normalized"), flag("special"));
}

}  // namespace anabatic::io
