// SPDX-License-Identifier: Apache-2.0
// The Unigram model: of all ways to cut a word into tokens the one with the largest sum of scores.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/flat_map.h"
#include "io/tokenizer/model.h"
#include "io/tokenizer/prefix_trie.h"

namespace anabatic::io::tokenizer {

class Unigram final : public Model {
 public:
  explicit Unigram(const JsonNode& model);

  void take_raw_bytes() override { takes_raw_bytes_ = true; }
  void encode(std::string_view word, WordScratch& scratch,
              std::vector<std::int32_t>& ids) const override;

  std::int32_t num_tokens() const override { return end_id(); }
  std::int32_t end_id() const override { return static_cast<std::int32_t>(tokens_.size()); }
  std::optional<std::int32_t> id_of(std::string_view token) const override;
  const std::string* token(std::int32_t id) const override;

 private:
  void load_vocabulary(const JsonNode& node);
  void encode_new(std::string_view word, WordScratch& scratch,
                  std::vector<std::int32_t>& ids) const;
  // Fills `paths`, one for each byte of `word` and its end.
  void find_paths(std::string_view word, std::vector<BestPath>& paths) const;
  // A token of the best path, or unknown characters side by side.
  void append_piece(std::string_view piece, std::vector<std::int32_t>& ids) const;
  std::int32_t unknown() const;  // InvalidArgument if the file names none

  std::vector<std::string> tokens_;  // by id
  std::vector<double> scores_;       // by id
  StringMap ids_;
  PrefixTrie trie_;
  std::array<std::int32_t, 256> byte_ids_{};  // of <0xNN>, -1: none
  std::int32_t unk_id_ = -1;
  double unk_score_ = 0;
  bool byte_fallback_ = false;
  bool takes_raw_bytes_ = false;
  std::string place_;
};

}  // namespace anabatic::io::tokenizer
