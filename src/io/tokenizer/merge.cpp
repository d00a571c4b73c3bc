// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/merge.h"

#include <algorithm>

#include "base/error.h"

namespace anabatic::io::tokenizer {
namespace {

constexpr std::uint32_t kNone = 0xFFFFFFFFu;
// Up to here, looking for the lowest rank by scanning beats the heap.
constexpr std::size_t kMaxScanned = 32;

void merge_by_scanning(const MergeTable& merges, std::span<const std::int32_t> symbols,
                       MergeScratch& scratch, std::vector<std::int32_t>& ids) {
  auto& row = scratch.row;
  auto& ranks = scratch.ranks;  // of the pair that starts at a place
  row.assign(symbols.begin(), symbols.end());
  const auto rank_at = [&](std::size_t i) {
    if (i + 1 >= row.size()) return kNone;
    const Merge* merge = merges.find(row[i], row[i + 1]);
    return merge ? merge->rank : kNone;
  };
  ranks.resize(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) ranks[i] = rank_at(i);
  while (row.size() > 1) {
    const auto best = std::min_element(ranks.begin(), ranks.end());
    if (*best == kNone) break;
    const auto i = static_cast<std::size_t>(best - ranks.begin());
    row[i] = merges.find(row[i], row[i + 1])->id;
    row.erase(row.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks[i] = rank_at(i);
    if (i > 0) ranks[i - 1] = rank_at(i - 1);
  }
  ids.insert(ids.end(), row.begin(), row.end());
}

void merge_by_heap(const MergeTable& merges, std::span<const std::int32_t> input,
                   MergeScratch& scratch, std::vector<std::int32_t>& ids) {
  ANABATIC_REQUIRE(input.size() < kNone, "[tokenizer] expected a word of less than 2^32 symbols");
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const auto count = static_cast<std::uint32_t>(input.size());
  symbols.resize(count);
  heap.clear();
  const auto later = [](const auto& a, const auto& b) { return a.order > b.order; };
  const auto candidate = [&](std::uint32_t place, std::int32_t left, std::int32_t right) {
    const Merge* merge = merges.find(left, right);
    if (!merge) return false;
    heap.push_back({static_cast<std::uint64_t>(merge->rank) << 32 | place, merge->id});
    return true;
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    symbols[i] = {input[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1};
    if (i + 1 < count) candidate(i, input[i], input[i + 1]);
  }
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const MergeScratch::Candidate top = heap.back();
    heap.pop_back();
    const auto place = static_cast<std::uint32_t>(top.order);
    auto& left = symbols[place];
    if (left.id < 0 || left.next == kNone) continue;
    auto& right = symbols[left.next];
    const Merge* merge = merges.find(left.id, right.id);
    if (!merge || merge->id != top.id) continue;  // an outdated candidate
    left.id = top.id;
    left.next = right.next;
    right.id = -1;
    if (left.next != kNone) symbols[left.next].previous = place;
    if (left.previous != kNone && candidate(left.previous, symbols[left.previous].id, left.id))
      std::push_heap(heap.begin(), heap.end(), later);
    if (left.next != kNone && candidate(place, left.id, symbols[left.next].id))
      std::push_heap(heap.begin(), heap.end(), later);
  }
  for (const auto& symbol : symbols)
    if (symbol.id >= 0) ids.push_back(symbol.id);
}

}  // namespace

std::vector<MergeTable::Entry> MergeTable::entries() const {
  std::vector<Entry> entries;
  map_.for_each([&](std::uint64_t pair, const Merge& merge) {
    entries.push_back(
        {static_cast<std::int32_t>(pair >> 32), static_cast<std::int32_t>(pair), merge});
  });
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.merge.rank < b.merge.rank; });
  return entries;
}

void apply_merges(const MergeTable& merges, std::span<const std::int32_t> symbols,
                  MergeScratch& scratch, std::vector<std::int32_t>& ids) {
  if (symbols.size() <= kMaxScanned)
    merge_by_scanning(merges, symbols, scratch, ids);
  else
    merge_by_heap(merges, symbols, scratch, ids);
}

}  // namespace anabatic::io::tokenizer
