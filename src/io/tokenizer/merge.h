// SPDX-License-Identifier: Apache-2.0
// The merges of a BPE model and the two ways to apply them to a row of symbols.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "io/tokenizer/flat_map.h"

namespace anabatic::io::tokenizer {

struct Merge {
  std::uint32_t rank = 0;  // lower is done first
  std::int32_t id = 0;     // of the merged token
};

class MergeTable {
 public:
  void set(std::int32_t left, std::int32_t right, Merge merge) {
    map_.set(key(left, right), merge);
  }
  const Merge* find(std::int32_t left, std::int32_t right) const {
    return map_.find(key(left, right));
  }

  struct Entry {
    std::int32_t left;
    std::int32_t right;
    Merge merge;
  };
  std::vector<Entry> entries() const;  // by rank

  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }

 private:
  FlatMap<Merge> map_;
};

// Buffers that applying merges reuses; one for each thread.
struct MergeScratch {
  struct Symbol {
    std::int32_t id;  // -1: merged away
    std::uint32_t previous;
    std::uint32_t next;
  };
  struct Candidate {
    std::uint64_t order;  // rank, then place
    std::int32_t id;      // of the merged token
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  std::vector<std::int32_t> row;
  std::vector<std::uint32_t> ranks;
};

// Merges the pair of the lowest rank, the leftmost of equals, until none is left; appends the rest
// to `ids`. O(n log n) in the number of symbols (less than 2^32).
void apply_merges(const MergeTable& merges, std::span<const std::int32_t> symbols,
                  MergeScratch& scratch, std::vector<std::int32_t>& ids);

}  // namespace anabatic::io::tokenizer
