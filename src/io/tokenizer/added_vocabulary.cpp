// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/added_vocabulary.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "io/tokenizer/unicode.h"

namespace anabatic::io::tokenizer {

ByteTrie::ByteTrie() : nodes_(1) {}

void ByteTrie::insert(std::string_view word, std::int32_t value) {
  std::uint32_t at = 0;
  for (const char c : word) {
    const auto byte = static_cast<unsigned char>(c);
    auto& children = nodes_[at].children;
    const auto found = std::find_if(children.begin(), children.end(),
                                    [&](const auto& child) { return child.first == byte; });
    if (found != children.end()) {
      at = found->second;
      continue;
    }
    const auto next = static_cast<std::uint32_t>(nodes_.size());
    children.emplace_back(byte, next);
    if (at == 0) roots_[byte] = next;
    nodes_.emplace_back();
    at = next;
  }
  if (nodes_[at].value < 0) nodes_[at].value = value;
}

std::int32_t ByteTrie::find(std::string_view text, std::size_t at, Match& match) const {
  for (; at < text.size(); ++at) {
    std::uint32_t node = roots_[static_cast<unsigned char>(text[at])];
    if (node == 0) continue;
    std::int32_t value = -1;
    for (std::size_t end = at + 1;; ++end) {
      if (nodes_[node].value >= 0) {
        value = nodes_[node].value;
        match = {at, end};
      }
      if (end == text.size()) break;
      const auto byte = static_cast<unsigned char>(text[end]);
      const auto& children = nodes_[node].children;
      const auto child = std::find_if(children.begin(), children.end(),
                                      [&](const auto& entry) { return entry.first == byte; });
      if (child == children.end()) break;
      node = child->second;
    }
    if (value >= 0) return value;
  }
  return -1;
}

namespace {

// Finding tokens takes at worst this many steps a byte of text.
constexpr std::size_t kMaxToken_bytes = 1024;

AddedToken read_token(const JsonNode& node) {
  AddedToken token;
  token.content = node.at("content").as_string();
  token.single_word = node.at("single_word").as_bool();
  token.lstrip = node.at("lstrip").as_bool();
  token.rstrip = node.at("rstrip").as_bool();
  token.normalized = node.at("normalized").as_bool();
  token.special = node.at("special").as_bool();
  return token;
}

}  // namespace

AddedVocabulary::AddedVocabulary(
    const std::optional<JsonNode>& node, std::int32_t model_size,
    const std::function<std::optional<std::int32_t>(const std::string&)>& model_id,
    const Normalizers& normalizers)
    : word_("\\A[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]",
            "[tokenizer] single_word") {
  if (!node) return;
  RegexScratch scratch;
  std::int32_t next_id = model_size;
  int num_moved = 0;
  std::string first_moved;
  for (const JsonNode& item : node->items()) {
    AddedToken token = read_token(item);
    const std::int32_t file_id = tokenizer::id_of(item.at("id"));
    if (token.content.empty()) continue;
    std::int32_t id = 0;
    if (const auto seen = ids_.find(token.content); seen != ids_.end()) {
      id = seen->second;
    } else if (const auto known = model_id(token.content)) {
      id = *known;
    } else {
      if (next_id > kMaxId) item.refuse("fewer tokens");
      id = next_id++;
    }
    if (id != file_id && num_moved++ == 0) {
      first_moved = fmt::format("{} `{:.40}` has id {} in the file and gets {}", item.path(),
                                token.content, file_id, id);
    }
    std::string decoded = token.content;
    if (token.normalized)
      for (const auto& normalizer : normalizers) normalizer->apply(decoded, false, scratch);
    if (decoded.empty()) item.unsupported("an added token that is empty once normalised");
    if (decoded.size() > kMaxToken_bytes)
      item.unsupported(fmt::format("an added token of more than {} bytes", kMaxToken_bytes));
    ids_[token.content] = id;
    if (token.special) special_.insert(token.content);
    end_id_ = std::max(end_id_, id + 1);
    entries_[id] = {std::move(token), std::move(decoded)};
  }
  if (num_moved > 0)
    log_warning("{}: {} added tokens get other ids than the file says: {}", node->place(),
                num_moved, first_moved);
  for (const auto& [id, entry] : entries_)
    (entry.token.normalized ? normalized_ : raw_).insert(entry.decoded, id);
}

void AddedVocabulary::split(const ByteTrie& trie, std::string_view text, RegexScratch& scratch,
                            std::vector<TextPart>& parts, const MayMatch& may_match) const {
  parts.clear();
  std::size_t done = 0;
  if (!trie.empty()) {
    Match match;
    for (std::size_t at = 0; at < text.size(); at = match.end) {
      const std::int32_t id = trie.find(text, at, match);
      if (id < 0) break;
      const AddedToken& token = entries_.at(id).token;
      if (!may_match(match, token.special)) {
        match.end = match.begin + 1;
        continue;
      }
      if (token.single_word && !is_single_word(text, match, scratch)) continue;
      std::size_t begin = match.begin, end = match.end, length = 0;
      if (token.lstrip) {
        while (begin > 0) {
          const std::size_t before = previous_character(text, begin);
          if (!is_whitespace(decode_utf8(text, before, length))) break;
          begin = before;
        }
        begin = std::max(begin, done);
      }
      if (token.rstrip) {
        while (end < text.size() && is_whitespace(decode_utf8(text, end, length))) end += length;
      }
      if (done < begin) parts.push_back({text.substr(done, begin - done)});
      parts.push_back({text.substr(begin, end - begin), id});
      done = end;
    }
  }
  if (done < text.size()) parts.push_back({text.substr(done)});
}

bool AddedVocabulary::is_word_at(std::string_view text, std::size_t at,
                                 RegexScratch& scratch) const {
  Match match;
  const auto length = utf8_length(static_cast<unsigned char>(text[at]));
  return MatchCursor(word_, text.substr(at, length), scratch).next(match);
}

bool AddedVocabulary::is_single_word(std::string_view text, const Match& match,
                                     RegexScratch& scratch) const {
  if (match.begin > 0 && is_word_at(text, previous_character(text, match.begin), scratch))
    return false;
  return match.end == text.size() || !is_word_at(text, match.end, scratch);
}

std::optional<std::int32_t> AddedVocabulary::id_of(std::string_view content) const {
  const auto found = ids_.find(std::string(content));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* AddedVocabulary::text_of(std::int32_t id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second.decoded;
}

bool AddedVocabulary::is_special_text(std::string_view text) const {
  return special_.contains(std::string(text));
}

}  // namespace anabatic::io::tokenizer
