// SPDX-License-Identifier: Apache-2.0
// A character map in the format of SentencePiece, from pairs of texts.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace anabatic::io {

// Each node of the trie has a block of 256 units, which an offset (a XOR) leads to.
inline std::string character_map(const std::map<std::string, std::string>& rules) {
  std::vector<std::uint32_t> units(512, 0);
  units[0] = 256u << 10;
  std::string replacements;
  for (const auto& [from, to] : rules) {
    std::uint32_t block = 256;
    for (std::size_t i = 0; i < from.size(); ++i) {
      const auto byte = static_cast<unsigned char>(from[i]);
      const std::uint32_t at = block ^ byte;
      if (units[at] == 0) {
        const auto next = static_cast<std::uint32_t>(units.size());
        units.resize(units.size() + 256, 0);
        units[at] = (at ^ next) << 10 | byte;
      }
      if (i + 1 == from.size()) units[at] |= 1u << 8;
      block = at ^ units[at] >> 10;
    }
    units[block] = 1u << 31 | static_cast<std::uint32_t>(replacements.size());
    replacements += to + '\0';
  }
  const auto num_bytes = static_cast<std::uint32_t>(4 * units.size());
  std::string blob(4 + num_bytes, '\0');
  std::memcpy(blob.data(), &num_bytes, 4);
  std::memcpy(blob.data() + 4, units.data(), num_bytes);
  return blob + replacements;
}

}  // namespace anabatic::io
