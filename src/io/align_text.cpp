// SPDX-License-Identifier: Apache-2.0
#include "io/align_text.h"

#include <algorithm>

namespace anabatic::io {
namespace {

constexpr std::string_view kSpaceSymbol = "\u2581";
constexpr std::size_t kFarthest = 64;  // bytes that are left out or put in at one place
constexpr std::size_t kAlike = 3;      // bytes after which both are taken to go on alike

// How many bytes of `b` the byte `a[i]` stands for; 0 if they differ.
std::size_t matched_bytes(std::string_view a, std::size_t i, std::string_view b, std::size_t j) {
  if (i >= a.size() || j >= b.size()) return 0;
  if (a[i] == b[j]) return 1;
  // Another case, or the rest of a character that another one of the same length replaces.
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  const auto continues = [](char c) { return (c & 0xC0) == 0x80; };
  if (lower(a[i]) == lower(b[j]) || (continues(a[i]) && continues(b[j]))) return 1;
  return a[i] == ' ' && b.substr(j).starts_with(kSpaceSymbol) ? kSpaceSymbol.size() : 0;
}

bool goes_on_alike(std::string_view a, std::size_t i, std::string_view b, std::size_t j) {
  for (std::size_t n = 0; n < kAlike; ++n) {
    if (i >= a.size() || j >= b.size()) return i >= a.size() && j >= b.size();
    const std::size_t bytes = matched_bytes(a, i, b, j);
    if (bytes == 0) return false;
    ++i;
    j += bytes;
  }
  return true;
}

}  // namespace

void align_text(std::string_view made, std::string_view original,
                std::vector<std::uint32_t>& places) {
  places.resize(made.size());
  std::size_t i = 0, j = 0;
  while (i < made.size()) {
    if (const std::size_t bytes = matched_bytes(made, i, original, j); bytes > 0) {
      places[i++] = static_cast<std::uint32_t>(j);
      j += bytes;
      continue;
    }
    // The least that is put in (x) and left out (y).
    std::size_t put_in = 1, left_out = j < original.size() ? 1 : 0;
    bool found = false;
    for (std::size_t sum = 1; sum <= kFarthest && !found; ++sum)
      for (std::size_t x = 0; x <= sum && !found; ++x) {
        if (i + x > made.size() || j + sum - x > original.size()) continue;
        found = goes_on_alike(made, i + x, original, j + sum - x);
        if (found) put_in = x, left_out = sum - x;
      }
    const auto last =
        static_cast<std::uint32_t>(std::min(j, original.empty() ? 0 : original.size() - 1));
    for (std::size_t end = std::min(made.size(), i + put_in); i < end; ++i) places[i] = last;
    j += left_out;
  }
}

}  // namespace anabatic::io
