// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/word_cache.h"

#include <cstring>

#include "io/tokenizer/flat_map.h"

namespace anabatic::io::tokenizer {

std::size_t WordCache::place(std::string_view key, std::uint64_t hash) const {
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.num_ids == 0) return at;
    if (slot.tag == tag && slot.key_size == key.size() &&
        std::memcmp(keys_.data() + slot.key, key.data(), key.size()) == 0)
      return at;
  }
}

bool WordCache::append(std::string_view key, std::vector<std::int32_t>& ids) const {
  if (slots_.empty()) return false;
  const Slot& slot = slots_[place(key, hash_bytes(key.data(), key.size()))];
  if (slot.num_ids == 0) return false;
  const auto begin = ids_.begin() + slot.ids;
  ids.insert(ids.end(), begin, begin + slot.num_ids);
  return true;
}

void WordCache::insert(std::string_view key, std::span<const std::int32_t> ids) {
  if (ids.empty() || ids.size() > 0xFFFF || key.size() > kMaxKey_bytes) return;
  if (count_ == kMaxEntries) {
    slots_.assign(slots_.size(), Slot{});
    keys_.clear();
    ids_.clear();
    count_ = 0;
  }
  if (2 * (count_ + 1) > slots_.size()) grow();
  const std::uint64_t hash = hash_bytes(key.data(), key.size());
  slots_[place(key, hash)] = {.tag = static_cast<std::uint32_t>(hash >> 32),
                              .key_size = static_cast<std::uint16_t>(key.size()),
                              .num_ids = static_cast<std::uint16_t>(ids.size()),
                              .key = static_cast<std::uint32_t>(keys_.size()),
                              .ids = static_cast<std::uint32_t>(ids_.size())};
  keys_ += key;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++count_;
}

void WordCache::grow() {
  std::vector<Slot> old(slots_.empty() ? 1024 : 2 * slots_.size());
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.num_ids == 0) continue;
    const std::string_view key(keys_.data() + slot.key, slot.key_size);
    slots_[place(key, hash_bytes(key.data(), key.size()))] = slot;
  }
}

}  // namespace anabatic::io::tokenizer
