// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/bpe.h"

#include "base/error.h"
#include "io/tokenizer/unicode.h"

namespace anabatic::io::tokenizer {

void Bpe::encode(std::string_view word, WordScratch& scratch,
                 std::vector<std::int32_t>& ids) const {
  if (word.size() > WordCache::kMaxKey_bytes) return encode_long(word, scratch, ids);
  if (scratch.words.append(word, ids)) return;
  const std::size_t before = ids.size();
  encode_new(word, scratch, ids);
  scratch.words.insert(word, std::span(ids).subspan(before));
}

void Bpe::encode_new(std::string_view word, WordScratch& scratch,
                     std::vector<std::int32_t>& ids) const {
  if (takes_raw_bytes_) {
    scratch.mapped.clear();
    append_byte_symbols(word, scratch.mapped);
    word = scratch.mapped;
  }
  if (ignore_merges_) {
    if (const std::int32_t id = vocabulary_.find(word); id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  symbolise(word, scratch);
  apply_merges(merges_, scratch.symbols, scratch.merge, ids);
}

void Bpe::encode_long(std::string_view word, WordScratch& scratch,
                      std::vector<std::int32_t>& ids) const {
  if (!can_cut_) return encode_new(word, scratch, ids);
  if (takes_raw_bytes_) {
    scratch.mapped.clear();
    append_byte_symbols(word, scratch.mapped);
    word = scratch.mapped;
  }
  if (ignore_merges_) {
    if (const std::int32_t id = vocabulary_.find(word); id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  symbolise(word, scratch);
  const std::span<const std::int32_t> symbols(scratch.symbols);
  for (std::size_t begin = 0; begin < symbols.size();) {
    std::size_t end = begin + 1;
    while (end < symbols.size() &&
           joined_.find(MergeTable::key(symbols[end - 1], symbols[end])) != nullptr)
      ++end;
    encode_run(symbols.subspan(begin, end - begin), scratch, ids);
    begin = end;
  }
}

void Bpe::encode_run(std::span<const std::int32_t> run, WordScratch& scratch,
                     std::vector<std::int32_t>& ids) const {
  if (run.size() == 1) {
    ids.push_back(run[0]);
    return;
  }
  const std::string_view key(reinterpret_cast<const char*>(run.data()), run.size_bytes());
  if (key.size() > WordCache::kMaxKey_bytes) return apply_merges(merges_, run, scratch.merge, ids);
  if (scratch.runs.append(key, ids)) return;
  const std::size_t before = ids.size();
  apply_merges(merges_, run, scratch.merge, ids);
  scratch.runs.insert(key, std::span(ids).subspan(before));
}

std::int32_t Bpe::symbol_of(std::string_view character) const {
  if (character.size() <= 2) {
    std::size_t length = 0;
    return short_symbols_[decode_utf8(character, 0, length)];
  }
  return vocabulary_.find(character);
}

bool Bpe::append_bytes(std::string_view character, std::vector<std::int32_t>& symbols) const {
  for (const char byte : character)
    if (byte_symbols_[static_cast<unsigned char>(byte)] < 0) return false;
  for (const char byte : character)
    symbols.push_back(byte_symbols_[static_cast<unsigned char>(byte)]);
  return true;
}

// The order of an unknown symbol and byte symbols around it is Hugging Face's: a pending unknown
// is written when the next known character comes, after any byte symbols in between.
void Bpe::symbolise(std::string_view word, WordScratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  const bool is_decorated = !prefix_.empty() || !suffix_.empty();
  bool is_unknown_pending = false;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t length = utf8_length(static_cast<unsigned char>(word[at]));
    std::string_view character = word.substr(at, length);
    std::int32_t id = -1;
    if (is_decorated) {
      scratch.character = at > 0 ? prefix_ : std::string();
      scratch.character += character;
      if (at + length == word.size()) scratch.character += suffix_;
      character = scratch.character;
      id = vocabulary_.find(character);
    } else {
      id = symbol_of(character);
    }
    at += length;
    if (id >= 0) {
      if (is_unknown_pending) symbols.push_back(unk_id_);
      is_unknown_pending = false;
      symbols.push_back(id);
    } else if (byte_fallback_ && append_bytes(character, symbols)) {
      continue;
    } else if (!unk_token_.empty()) {
      ANABATIC_REQUIRE(unk_id_ >= 0,
                       "[tokenizer] expected the unknown token `{}` in the vocabulary, got none",
                       unk_token_);
      if (is_unknown_pending && !fuse_unk_) symbols.push_back(unk_id_);
      is_unknown_pending = true;
    }
  }
  if (is_unknown_pending) symbols.push_back(unk_id_);
}

std::optional<std::int32_t> Bpe::id_of(std::string_view token) const {
  const std::int32_t id = vocabulary_.find(token);
  if (id < 0) return std::nullopt;
  return id;
}

const std::string* Bpe::token(std::int32_t id) const {
  if (id < 0 || id >= end_id() || !is_token_[static_cast<std::size_t>(id)]) return nullptr;
  return &tokens_[static_cast<std::size_t>(id)];
}

}  // namespace anabatic::io::tokenizer
