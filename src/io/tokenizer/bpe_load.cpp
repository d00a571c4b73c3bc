// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "io/tokenizer/bpe.h"
#include "io/tokenizer/unicode.h"

namespace anabatic::io::tokenizer {

void StringMap::reserve(std::size_t count, std::size_t bytes) {
  std::size_t size = 16;
  while (size < 2 * count + 2) size *= 2;
  slots_.assign(size, Slot{});
  arena_.reserve(bytes);
}

bool StringMap::insert(std::string_view text, std::int32_t id) {
  if (2 * (count_ + 1) > slots_.size()) {
    std::vector<Slot> old(std::max<std::size_t>(16, 2 * slots_.size()));
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.id < 0) continue;
      const std::string_view key(arena_.data() + slot.offset, slot.size);
      slots_[place(key, hash_bytes(key.data(), key.size()))] = slot;
    }
  }
  const std::uint64_t hash = hash_bytes(text.data(), text.size());
  Slot& slot = slots_[place(text, hash)];
  if (slot.id >= 0) return false;
  slot = {static_cast<std::uint32_t>(hash >> 32), id, arena_.size(), text.size()};
  arena_ += text;
  ++count_;
  return true;
}

Bpe::Bpe(const JsonNode& model) {
  load_options(model);
  load_vocabulary(model.at("vocab"));
  unk_id_ = unk_token_.empty() ? -1 : vocabulary_.find(unk_token_);
  load_merges(model.at("merges"));
  index_symbols();
  find_cuts();
}

void Bpe::load_options(const JsonNode& model) {
  if (const auto dropout = model.find("dropout")) {
    if (!dropout->value().is_number()) dropout->refuse("null or a number");
    if (dropout->value().get<double>() != 0.0) dropout->unsupported("dropout");
  }
  const auto text_or_empty = [&](std::string_view key) {
    const auto node = model.find(key);
    return node ? node->as_string() : std::string();
  };
  unk_token_ = text_or_empty("unk_token");
  prefix_ = text_or_empty("continuing_subword_prefix");
  suffix_ = text_or_empty("end_of_word_suffix");
  fuse_unk_ = model.bool_or("fuse_unk", false);
  byte_fallback_ = model.bool_or("byte_fallback", false);
  ignore_merges_ = model.bool_or("ignore_merges", false);
}

void Bpe::load_vocabulary(const JsonNode& node) {
  const nlohmann::json& object = node.value();
  if (!object.is_object()) node.refuse("an object from tokens to ids");
  // Tables are indexed by id, so ids must not be much sparser than tokens.
  const std::uint64_t limit = std::min<std::uint64_t>(4 * object.size() + 0xFFFF, kMaxId);
  std::int32_t end = 0;
  std::size_t bytes = 0;
  for (auto entry = object.begin(); entry != object.end(); ++entry) {
    if (!entry.value().is_number_unsigned() || entry.value().get<std::uint64_t>() > limit)
      node.at(entry.key()).refuse(fmt::format("an id from 0 to {}", limit));
    end = std::max(end, entry.value().get<std::int32_t>() + 1);
    bytes += entry.key().size();
  }
  tokens_.resize(static_cast<std::size_t>(end));
  is_token_.resize(static_cast<std::size_t>(end));
  vocabulary_.reserve(object.size(), bytes);
  for (auto entry = object.begin(); entry != object.end(); ++entry) {
    const auto id = entry.value().get<std::int32_t>();
    const auto index = static_cast<std::size_t>(id);
    if (is_token_[index]) {
      throw InvalidArgument(
          fmt::format("{}: expected distinct ids, got {} for both "
                      "`{}` and `{}`",
                      node.place(), id, tokens_[index], entry.key()));
    }
    is_token_[index] = true;
    tokens_[index] = entry.key();
    vocabulary_.insert(entry.key(), id);
  }
}

void Bpe::load_merges(const JsonNode& node) {
  const nlohmann::json& list = node.value();
  if (!list.is_array()) node.refuse("a list of pairs");
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const nlohmann::json& entry = list[i];
    if (entry.is_string()) {
      const std::string_view text = entry.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;
      const std::size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
        node.item(i).refuse("two tokens with one space between");
      add_merge(node, i, text.substr(0, space), text.substr(space + 1), rank++);
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
               entry[1].is_string()) {
      add_merge(node, i, entry[0].get_ref<const std::string&>(),
                entry[1].get_ref<const std::string&>(), rank++);
    } else {
      node.item(i).refuse("a pair of tokens");
    }
  }
}

void Bpe::add_merge(const JsonNode& merges, std::size_t i, std::string_view left,
                    std::string_view right, std::uint32_t rank) {
  const auto id_or_refuse = [&](std::string_view token) {
    const std::int32_t id = vocabulary_.find(token);
    if (id < 0) {
      throw InvalidArgument(fmt::format("{}: expected tokens of the vocabulary, got `{}`",
                                        merges.item(i).place(), token));
    }
    return id;
  };
  const std::int32_t left_id = id_or_refuse(left);
  const std::int32_t right_id = id_or_refuse(right);
  if (right.size() < prefix_.size())
    merges.item(i).refuse("a right part that starts with continuing_subword_prefix");
  const std::string merged = std::string(left) + std::string(right.substr(prefix_.size()));
  merges_.set(left_id, right_id, {.rank = rank, .id = id_or_refuse(merged)});
}

void Bpe::index_symbols() {
  std::string character;
  for (char32_t c = 0; c < short_symbols_.size(); ++c) {
    character.clear();
    append_utf8(character, c);
    short_symbols_[c] = vocabulary_.find(character);
  }
  for (unsigned byte = 0; byte < 256; ++byte)
    byte_symbols_[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte));
}

// Every token that merges make is a row of initial symbols; its first and last one follow from
// those of its parts. A merge of A and B joins the neighbours (last of A, first of B). Where some
// token can start or end in more than one symbol, nothing is proven and words stay whole.
void Bpe::find_cuts() {
  if (!prefix_.empty() || !suffix_.empty()) return;
  constexpr std::int32_t kUnset = -1;
  std::vector<std::int32_t> first(tokens_.size(), kUnset), last(tokens_.size(), kUnset);
  const auto set_symbol = [&](std::int32_t id) {
    if (id >= 0) first[static_cast<std::size_t>(id)] = last[static_cast<std::size_t>(id)] = id;
  };
  for (std::size_t id = 0; id < tokens_.size(); ++id)
    if (is_token_[id] && is_one_character(tokens_[id])) set_symbol(static_cast<std::int32_t>(id));
  if (byte_fallback_)
    for (const std::int32_t id : byte_symbols_) set_symbol(id);
  set_symbol(unk_id_);

  const auto pairs = merges_.entries();
  const auto agree = [](std::int32_t& value, std::int32_t wanted, bool& changed) {
    if (value == wanted) return true;
    if (value != kUnset) return false;
    value = wanted;
    changed = true;
    return true;
  };
  constexpr int kMaxPasses = 16;  // in the order of ranks, two are enough for trained merges
  bool changed = true;
  for (int pass = 0; changed; ++pass) {
    if (pass == kMaxPasses) return;
    changed = false;
    for (const auto& [left, right, merge] : pairs) {
      const std::int32_t start = first[static_cast<std::size_t>(left)];
      const std::int32_t end = last[static_cast<std::size_t>(right)];
      const auto merged = static_cast<std::size_t>(merge.id);
      if (start == kUnset || end == kUnset) continue;
      if (!agree(first[merged], start, changed) || !agree(last[merged], end, changed)) return;
    }
  }
  for (const auto& [left, right, merge] : pairs) {
    const std::int32_t before = last[static_cast<std::size_t>(left)];
    const std::int32_t after = first[static_cast<std::size_t>(right)];
    if (before != kUnset && after != kUnset) joined_.set(MergeTable::key(before, after), 1);
  }
  can_cut_ = true;
}

}  // namespace anabatic::io::tokenizer
