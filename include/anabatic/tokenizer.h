// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back, as the files of a model say.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "anabatic/config.h"
#include "anabatic/export.h"

namespace anabatic {

// Ids equal those of Hugging Face `tokenizers` on the same files. Const members may be called from
// many threads at once.
class ANABATIC_API Tokenizer {
 public:
  // A model directory, a GGUF file, or a tokenizer.json, tokenizer.model or tekken.json.
  // InvalidArgument names the place of a bad field, Unsupported a component that nothing here
  // implements.
  explicit Tokenizer(const std::string& path);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  // Special tokens are those that the tokenizer itself adds, such as a leading BOS.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens = true) const;
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens = true) const;
  std::int64_t vocabulary() const;  // the largest id + 1
  std::optional<std::int32_t> token_to_id(std::string_view token) const;
  std::string id_to_token(std::int32_t id) const;  // "" if there is none

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct TokenizeSummary {
  std::int64_t documents = 0, tokens = 0;
  std::int64_t text_bytes = 0;  // read
};

// Writes the token ids of text and JSON files, also gzipped, to PREFIX.bin and PREFIX.idx, which
// data.train reads. The tokenizer is that of model.path; data.format, data.add_bos,
// data.append_eos and device.threads count too. Errors name file and line; nothing is left then.
ANABATIC_API TokenizeSummary tokenize_files(const std::vector<std::string>& files,
                                            const std::string& output_prefix,
                                            const Settings& settings);

}  // namespace anabatic
