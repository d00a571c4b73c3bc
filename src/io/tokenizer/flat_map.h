// SPDX-License-Identifier: Apache-2.0
// Open-addressing maps for the inner loop of the tokenizer: filled once, then only read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::io::tokenizer {

inline std::uint64_t mix_bits(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93u;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93u;
  return x ^ x >> 32;
}

inline std::uint64_t hash_bytes(const char* data, std::size_t size) {
  std::uint64_t hash = size * 0x9E3779B97F4A7C15u;
  std::uint64_t word = 0;
  for (; size >= 8; size -= 8, data += 8) {
    std::memcpy(&word, data, 8);
    hash = (hash ^ word) * 0x9FB21C651E98DF25u;
    hash ^= hash >> 29;
  }
  word = 0;
  std::memcpy(&word, data, size);
  return mix_bits(hash ^ word);
}

// 64-bit keys (never ~0) to values.
template <class Value>
class FlatMap {
 public:
  explicit FlatMap(std::size_t expected = 0) { rehash(expected); }

  void set(std::uint64_t key, const Value& value) {
    if (2 * (count_ + 1) > slots_.size()) rehash(2 * count_ + 2);
    Slot& slot = slots_[place(key)];
    if (slot.key == kEmpty) ++count_;
    slot = {key, value};
  }
  // Null if absent; valid until the next set.
  const Value* find(std::uint64_t key) const {
    const Slot& slot = slots_[place(key)];
    return slot.key == key ? &slot.value : nullptr;
  }
  std::size_t size() const { return count_; }
  template <class Visit>
  void for_each(Visit visit) const {
    for (const Slot& slot : slots_)
      if (slot.key != kEmpty) visit(slot.key, slot.value);
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kEmpty;
    Value value{};
  };

  std::size_t place(std::uint64_t key) const {
    std::size_t at = mix_bits(key) & (slots_.size() - 1);
    while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void rehash(std::size_t expected) {
    std::size_t size = 16;
    while (size < 2 * expected) size *= 2;
    std::vector<Slot> old(size);
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.key != kEmpty) slots_[place(slot.key)] = slot;
  }

  std::vector<Slot> slots_;
  std::size_t count_ = 0;
};

// Distinct strings to ids; the strings live in one arena.
class StringMap {
 public:
  void reserve(std::size_t count, std::size_t bytes);
  // Returns false, and changes nothing, if the string is there already.
  bool insert(std::string_view text, std::int32_t id);
  // -1 if absent.
  std::int32_t find(std::string_view text) const {
    if (slots_.empty()) return -1;
    const Slot& slot = slots_[place(text, hash_bytes(text.data(), text.size()))];
    return slot.id;
  }
  std::size_t size() const { return count_; }

 private:
  struct Slot {
    std::uint32_t hash = 0;
    std::int32_t id = -1;  // -1: free
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
  };
  std::size_t place(std::string_view text, std::uint64_t hash) const {
    std::size_t at = hash & (slots_.size() - 1);
    const auto tag = static_cast<std::uint32_t>(hash >> 32);
    for (;; at = (at + 1) & (slots_.size() - 1)) {
      const Slot& slot = slots_[at];
      if (slot.id < 0) return at;
      if (slot.hash == tag && slot.size == text.size() &&
          std::memcmp(arena_.data() + slot.offset, text.data(), text.size()) == 0)
        return at;
    }
  }

  std::vector<Slot> slots_;
  std::string arena_;
  std::size_t count_ = 0;
};

}  // namespace anabatic::io::tokenizer
