// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/unigram.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "io/tokenizer/unicode.h"

namespace anabatic::io::tokenizer {
namespace {

// An unknown character costs this much more than the rarest token.
constexpr double kUnknownPenalty = 10.0;

}  // namespace

Unigram::Unigram(const JsonNode& model) : place_(model.place()) {
  load_vocabulary(model.at("vocab"));
  if (const auto unk_id = model.find("unk_id")) {
    if (tokens_.empty()) unk_id->refuse("null, as the vocabulary is empty");
    unk_id_ = static_cast<std::int32_t>(unk_id->as_integer(0, end_id() - 1));
  }
  byte_fallback_ = model.bool_or("byte_fallback", false);
  for (unsigned byte = 0; byte < 256; ++byte)
    byte_ids_[byte] = ids_.find(fmt::format("<0x{:02X}>", byte));
}

void Unigram::load_vocabulary(const JsonNode& node) {
  const nlohmann::json& list = node.value();
  if (!list.is_array()) node.refuse("a list of tokens and scores");
  if (list.size() > static_cast<std::size_t>(kMaxId)) node.refuse("fewer tokens");
  double lowest = std::numeric_limits<double>::infinity();
  std::size_t num_bytes = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const nlohmann::json& entry = list[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
      node.item(i).refuse("a token and its score");
    tokens_.push_back(entry[0].get<std::string>());
    scores_.push_back(entry[1].get<double>());
    lowest = std::min(lowest, scores_.back());
    num_bytes += tokens_.back().size();
  }
  unk_score_ = lowest - kUnknownPenalty;
  ids_.reserve(tokens_.size(), num_bytes);
  std::vector<PrefixTrie::Word> words;
  for (std::int32_t id = 0; id < end_id(); ++id)
    words.emplace_back(tokens_[static_cast<std::size_t>(id)], id);
  // The last of equal tokens counts.
  for (auto word = words.rbegin(); word != words.rend(); ++word)
    ids_.insert(word->first, word->second);
  trie_ = PrefixTrie(std::move(words));
}

void Unigram::encode(std::string_view word, WordScratch& scratch,
                     std::vector<std::int32_t>& ids) const {
  if (word.size() > WordCache::kMaxKey_bytes) return encode_new(word, scratch, ids);
  if (scratch.words.append(word, ids)) return;
  const std::size_t before = ids.size();
  encode_new(word, scratch, ids);
  scratch.words.insert(word, std::span(ids).subspan(before));
}

void Unigram::find_paths(std::string_view word, std::vector<BestPath>& paths) const {
  paths.assign(word.size() + 1, BestPath{});
  for (std::size_t begin = 0, length = 0; begin < word.size(); begin += length) {
    length = utf8_length(static_cast<unsigned char>(word[begin]));
    const double score = paths[begin].score;
    const auto offer = [&](std::size_t size, std::int32_t id, double token_score) {
      BestPath& path = paths[begin + size];
      const double sum = token_score + score;
      if (path.id < 0 || sum > path.score) path = {sum, begin, id};
    };
    bool has_character = false;
    trie_.find_prefixes(word.substr(begin), [&](std::size_t size, std::int32_t id) {
      has_character |= size == length;
      offer(size, id, scores_[static_cast<std::size_t>(id)]);
    });
    if (!has_character) offer(length, unknown(), unk_score_);
  }
}

void Unigram::encode_new(std::string_view word, WordScratch& scratch,
                         std::vector<std::int32_t>& ids) const {
  if (takes_raw_bytes_) {
    scratch.mapped.clear();
    append_byte_symbols(word, scratch.mapped);
    word = scratch.mapped;
  }
  auto& paths = scratch.paths;
  find_paths(word, paths);
  // The chain of tokens is known from its end. Turned round it needs no memory of its own: `begin`
  // then says where the next token ends.
  for (std::size_t end = word.size(), next = end; end > 0;) {
    const std::size_t begin = paths[end].begin;
    paths[end].begin = next;
    next = end;
    end = begin;
    if (end == 0) paths[0].begin = next;
  }
  for (std::size_t at = 0; at < word.size();) {
    std::size_t end = paths[at].begin;
    if (unk_id_ >= 0 && paths[end].id == unk_id_)
      while (end < word.size() && paths[paths[end].begin].id == unk_id_) end = paths[end].begin;
    append_piece(word.substr(at, end - at), ids);
    at = end;
  }
}

void Unigram::append_piece(std::string_view piece, std::vector<std::int32_t>& ids) const {
  const std::int32_t id = ids_.find(piece);
  if (id >= 0) return ids.push_back(id);
  const auto byte_id = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  const bool has_bytes = byte_fallback_ && std::all_of(piece.begin(), piece.end(), [&](char byte) {
                           return byte_id(byte) >= 0;
                         });
  if (!has_bytes) return ids.push_back(unknown());
  for (const char byte : piece) ids.push_back(byte_id(byte));
}

std::int32_t Unigram::unknown() const {
  ANABATIC_REQUIRE(unk_id_ >= 0, "{}: expected an unk_id for a character without a token, got none",
                   place_);
  return unk_id_;
}

std::optional<std::int32_t> Unigram::id_of(std::string_view token) const {
  const std::int32_t id = ids_.find(token);
  if (id < 0) return std::nullopt;
  return id;
}

const std::string* Unigram::token(std::int32_t id) const {
  return id < 0 || id >= end_id() ? nullptr : &tokens_[static_cast<std::size_t>(id)];
}

}  // namespace anabatic::io::tokenizer
