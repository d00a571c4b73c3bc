// SPDX-License-Identifier: Apache-2.0
// A double-array trie: all words of a set that a text starts with, one load or two a byte.
#pragma once
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace anabatic::io::tokenizer {

class PrefixTrie {
 public:
  using Word = std::pair<std::string_view, std::int32_t>;  // and its value, at least 0

  PrefixTrie() = default;
  // Empty words are left out; of equal ones the last counts.
  explicit PrefixTrie(std::vector<Word> words);

  // Calls `visit(length, value)` for each word that `text` starts with, the shortest first.
  template <class Visit>
  void find_prefixes(std::string_view text, Visit&& visit) const {
    std::uint32_t at = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::uint32_t next = units_[at].base + static_cast<unsigned char>(text[i]);
      if (units_[next].parent != at) return;
      at = next;
      if (units_[at].value >= 0) visit(i + 1, units_[at].value);
    }
  }

 private:
  static constexpr std::uint32_t kFree = 0xFFFFFFFFu;
  // The child of a node by a byte stands at its base + byte and names the node as its parent.
  struct Unit {
    std::uint32_t base = 0;
    std::uint32_t parent = kFree;
    std::int32_t value = -1;
  };
  struct Node {
    std::size_t begin, end;  // the words below it
    std::size_t depth;       // bytes they share
    std::uint32_t at;
  };
  void add_children(const std::vector<Word>& words, const Node& node, std::vector<Node>& open);
  std::uint32_t find_base(const std::vector<unsigned char>& labels);

  std::vector<Unit> units_ = std::vector<Unit>(257);
  std::uint32_t first_free_ = 1;
};

}  // namespace anabatic::io::tokenizer
