// SPDX-License-Identifier: Apache-2.0
// Block-sparse attention: which blocks of keys the rows of a block attend to.
//
// Blocks count places of a document. Row t stands at place key_end[t] - 1 - key_begin[t] of its
// document, key s at s - key_begin[t], and block i holds the places [i·size, (i + 1)·size). A row
// of block i attends to key s of [key_begin[t], key_end[t]), within its window, only where list i
// has the block of s. So one set of lists serves every document, wherever it lies in a batch.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::spec {

// Attributes of attention and its gradient: places of a block, which says that there are lists; the
// share of unmasked pairs that these keep, which prices read.
inline constexpr std::string_view kBlockSize = "block_size", kBlockDensity = "block_density";
// Batch inputs of a graph with lists.
inline constexpr std::string_view kBlockOffsets = "block_offsets", kBlockIds = "block_ids";

// Blocks by hand: row i of group g has the blocks j with listed[(g·blocks + i)·blocks + j] != 0.
// Group g holds heads [g·H/groups, (g + 1)·H/groups) of H.
struct BlockMask {
  std::int64_t groups = 0, blocks = 0;
  std::vector<std::uint8_t> listed;
};

// A rule for the lists of all blocks. Block i has itself and, of the blocks before it:
//   local n    the n - 1 nearest
//   global n   the first n
//   stride n   every n-th: n - 1, 2n - 1, ... (Child et al., Sparse Transformers, "fixed")
//   random n   n of them, drawn by (seed, i)
// With a mask it has what that says.
struct BlockPattern {
  std::int64_t size = 0;
  std::int64_t local = 0, global = 0, stride = 0, random = 0;
  std::uint64_t seed = 0;
  std::shared_ptr<const BlockMask> mask{};

  std::int64_t groups() const { return mask ? mask->groups : 1; }
  // "local 8, global 1", or "a file of 128 x 128 blocks for 4 groups of heads".
  std::string to_string() const;
};

// Lists of groups · blocks blocks of rows, one after the other: block i of group g has the ids
// [offsets[g·(blocks + 1) + i], offsets[g·(blocks + 1) + i + 1]), which ascend.
struct BlockLists {
  std::int64_t size = 0, groups = 0, blocks = 0;
  std::vector<std::int32_t> offsets, ids;

  std::span<const std::int32_t> of(std::int64_t group, std::int64_t block) const;
  // Keys that the row at this place attends to in a causal document, the mean over the groups.
  double listed_keys(std::int64_t place, std::int64_t window) const;
  // The share of the pairs of a causal document of so many places that the lists keep.
  double density(std::int64_t num_places, std::int64_t window) const;
};

// For documents of at most so many places. InvalidArgument where a mask has fewer blocks, or ids
// are 2^31 or more.
BlockLists make_block_lists(const BlockPattern& pattern, std::int64_t num_places);

// Pairs of a row and a key in a causal document of so many places; a window caps each row; 0: none.
double causal_pairs(std::int64_t num_places, std::int64_t window);

}  // namespace anabatic::spec
