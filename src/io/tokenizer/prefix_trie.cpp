// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/prefix_trie.h"

#include <algorithm>

namespace anabatic::io::tokenizer {

PrefixTrie::PrefixTrie(std::vector<Word> words) {
  std::stable_sort(words.begin(), words.end(),
                   [](const Word& a, const Word& b) { return a.first < b.first; });
  std::vector<Node> open{{0, words.size(), 0, 0}};
  while (!open.empty()) {
    const Node node = open.back();
    open.pop_back();
    add_children(words, node, open);
  }
}

void PrefixTrie::add_children(const std::vector<Word>& words, const Node& node,
                              std::vector<Node>& open) {
  std::size_t begin = node.begin;
  for (; begin < node.end && words[begin].first.size() == node.depth; ++begin)
    if (node.depth > 0) units_[node.at].value = words[begin].second;
  std::vector<unsigned char> labels;
  std::vector<Node> children;
  while (begin < node.end) {
    const char label = words[begin].first[node.depth];
    std::size_t end = begin + 1;
    while (end < node.end && words[end].first[node.depth] == label) ++end;
    labels.push_back(static_cast<unsigned char>(label));
    children.push_back({begin, end, node.depth + 1, 0});
    begin = end;
  }
  if (labels.empty()) return;
  const std::uint32_t base = find_base(labels);
  units_[node.at].base = base;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    children[i].at = base + labels[i];
    units_[children[i].at].parent = node.at;
    open.push_back(children[i]);
  }
}

// The lowest base with room for all labels, looked for behind what is nearly full.
std::uint32_t PrefixTrie::find_base(const std::vector<unsigned char>& labels) {
  constexpr std::uint32_t kMostTries = 1024;  // then the search starts further on
  const auto [low, high] = std::minmax_element(labels.begin(), labels.end());
  const auto is_free = [&](std::uint32_t at) { return units_[at].parent == kFree; };
  std::uint32_t num_tries = 0;
  for (std::uint32_t at = std::max<std::uint32_t>(first_free_, *low + 1u);; ++at) {
    if (at + 512 > units_.size()) units_.resize(2 * units_.size() + 512);
    if (!is_free(at)) continue;
    const std::uint32_t base = at - *low;
    if (std::all_of(labels.begin(), labels.end(),
                    [&](unsigned char label) { return is_free(base + label); })) {
      while (!is_free(first_free_) || first_free_ == at) ++first_free_;
      if (num_tries > kMostTries) first_free_ = std::max(first_free_, at);
      return base;
    }
    ++num_tries;
  }
}

}  // namespace anabatic::io::tokenizer
