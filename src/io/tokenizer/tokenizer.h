// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back, as a Hugging Face `tokenizer.json` with a BPE or Unigram model says.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::io {

// The byte offset of the first ill-formed sequence, or nothing when `text` is UTF-8.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

// Which added tokens may be matched in a part of a text that ends at byte `end`. A match must lie
// in parts that all allow it.
enum class AddedTokenMatch : std::uint8_t { kNone, kNotSpecial, kAll };
struct AddedTokenRange {
  std::size_t end = 0;
  AddedTokenMatch match = AddedTokenMatch::kAll;
};

struct EncodedText {
  std::vector<std::int32_t> ids;
  // The byte of the text where each token begins. A token that goes on in the middle of a character
  // begins there; what a normalizer changed is placed by what stays around it.
  std::vector<std::uint32_t> begins;
};

// Ids equal those of Hugging Face `tokenizers` on the same file. Const members may be called from
// many threads at once. `truncation` and `padding` of the file are not applied.
class Tokenizer {
 public:
  // A model directory, a GGUF file, or a file of a tokenizer (tokenizer_file.h). InvalidArgument
  // names the place of a bad field, Unsupported the component or field that nothing here
  // implements.
  static Tokenizer load(const std::filesystem::path& folder_or_file);

  // From the text of a tokenizer.json; `name` stands for the file in errors.
  static Tokenizer parse(std::string_view json, std::string_view name = "tokenizer.json");

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // `add_special_tokens` applies the post-processor (such as a leading BOS). Added tokens in the
  // text are recognised in any case. InvalidArgument if `text` is not UTF-8.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens) const;
  void encode_append(std::string_view text, bool add_special_tokens,
                     std::vector<std::int32_t>& ids) const;

  // No special tokens around it. `ranges` cover the text in order; without any all are matched.
  EncodedText encode_with_begins(std::string_view text,
                                 std::span<const AddedTokenRange> ranges = {}) const;

  // For the later chunks of a text that was cut: no special tokens, and nothing is put in front of
  // the chunk (as Metaspace or a prepending normalizer do at the start of a text). Equal to the
  // ids of the whole text if it was cut where no word or added token reaches across.
  void encode_continuation(std::string_view chunk, std::vector<std::int32_t>& ids) const;

  // Ids without a token are left out; ill-formed UTF-8 becomes U+FFFD.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const;

  // Largest id + 1, added tokens included: rows that an embedding must have.
  std::int32_t vocabulary_size() const;
  std::optional<std::int32_t> token_to_id(std::string_view token) const;
  // The token as the file spells it (byte-level symbols or U+2581 left as they are); "" if none.
  std::string id_to_token(std::int32_t id) const;
  bool is_special(std::int32_t id) const;

  // What the post-processor adds before and after a text. special_tokens.h decides which of these a
  // document or prompt gets.
  std::span<const std::int32_t> special_prefix() const;
  std::span<const std::int32_t> special_suffix() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  static Tokenizer of_document(const nlohmann::json& document, std::string_view name);
  std::unique_ptr<Impl> impl_;
};

// Decoding one id at a time: the pieces joined, with finish() last, are decode() of all ids.
// Only whole characters are emitted, except that finish() may end in U+FFFD.
class TokenStream {
 public:
  // `tokenizer` must outlive the stream.
  TokenStream(const Tokenizer& tokenizer, bool skip_special_tokens);

  // The text that is now certain; often empty in the middle of a character.
  std::string push(std::int32_t id);
  std::string finish();

 private:
  std::string emit(std::string text);

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::vector<std::int32_t> ids_;  // context already emitted, then ids not yet emitted
  std::size_t num_emitted_ids_ = 0;
  std::string emitted_;  // the text of the context
};

}  // namespace anabatic::io
