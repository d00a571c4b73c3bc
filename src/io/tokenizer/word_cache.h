// SPDX-License-Identifier: Apache-2.0
// A bounded memory of how words were tokenised; one for each thread.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::io::tokenizer {

class WordCache {
 public:
  static constexpr std::size_t kMaxKey_bytes = 128;

  // Appends the ids of `key` and returns true if it is known.
  bool append(std::string_view key, std::vector<std::int32_t>& ids) const;

  // `key` (at most kMaxKey_bytes) must not be known. Forgets everything when full.
  void insert(std::string_view key, std::span<const std::int32_t> ids);

 private:
  // Entries at most, hence about 6 MiB at most for English.
  static constexpr std::size_t kMaxEntries = 1 << 16;

  struct Slot {
    std::uint32_t tag = 0;
    std::uint16_t key_size = 0;  // bytes
    std::uint16_t num_ids = 0;   // 0: free
    std::uint32_t key = 0;       // offset in keys_
    std::uint32_t ids = 0;       // offset in ids_
  };
  std::size_t place(std::string_view key, std::uint64_t hash) const;
  void grow();

  std::vector<Slot> slots_;
  std::string keys_;
  std::vector<std::int32_t> ids_;
  std::size_t count_ = 0;
};

}  // namespace anabatic::io::tokenizer
