// SPDX-License-Identifier: Apache-2.0
// The BPE model: a word becomes one symbol for each character (or byte), then merges are applied.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/flat_map.h"
#include "io/tokenizer/merge.h"
#include "io/tokenizer/model.h"

namespace anabatic::io::tokenizer {

class Bpe final : public Model {
 public:
  explicit Bpe(const JsonNode& model);

  void take_raw_bytes() override { takes_raw_bytes_ = true; }
  void encode(std::string_view word, WordScratch& scratch,
              std::vector<std::int32_t>& ids) const override;

  std::int32_t num_tokens() const override { return static_cast<std::int32_t>(vocabulary_.size()); }
  std::int32_t end_id() const override { return static_cast<std::int32_t>(tokens_.size()); }
  std::optional<std::int32_t> id_of(std::string_view token) const override;
  const std::string* token(std::int32_t id) const override;

 private:
  void load_options(const JsonNode& model);
  void load_vocabulary(const JsonNode& node);
  void load_merges(const JsonNode& node);
  void add_merge(const JsonNode& merges, std::size_t i, std::string_view left,
                 std::string_view right, std::uint32_t rank);
  void index_symbols();
  void find_cuts();

  void encode_new(std::string_view word, WordScratch& scratch,
                  std::vector<std::int32_t>& ids) const;
  void encode_long(std::string_view word, WordScratch& scratch,
                   std::vector<std::int32_t>& ids) const;
  void encode_run(std::span<const std::int32_t> run, WordScratch& scratch,
                  std::vector<std::int32_t>& ids) const;
  // The row of symbols before any merge.
  void symbolise(std::string_view word, WordScratch& scratch) const;
  std::int32_t symbol_of(std::string_view character) const;
  bool append_bytes(std::string_view character, std::vector<std::int32_t>& symbols) const;

  StringMap vocabulary_;
  std::vector<std::string> tokens_;  // by id
  std::vector<bool> is_token_;       // by id
  MergeTable merges_;
  std::string prefix_;  // continuing_subword_prefix
  std::string suffix_;  // end_of_word_suffix
  std::string unk_token_;
  std::int32_t unk_id_ = -1;  // -1: characters without a token vanish
  bool fuse_unk_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool takes_raw_bytes_ = false;

  std::array<std::int32_t, 0x800> short_symbols_{};  // characters of one or two bytes, -1: none
  std::array<std::int32_t, 256> byte_symbols_{};     // <0xNN>, -1: none

  // Pairs of neighbouring symbols across which some merge can reach. Between two others a word can
  // be cut without changing its ids. Valid if can_cut_.
  FlatMap<char> joined_;
  bool can_cut_ = false;
};

}  // namespace anabatic::io::tokenizer
