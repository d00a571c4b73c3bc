// SPDX-License-Identifier: Apache-2.0
#include "io/document_ends.h"

#include <algorithm>

namespace anabatic::io {
namespace {

using Ids = std::vector<std::int32_t>;

}  // namespace

std::size_t DocumentEnds::put_before(Ids& ids, std::size_t first) const {
  const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(first);
  std::size_t missing = prefix.size();
  if (begin != ids.end() && !prefix.empty() && *begin == prefix.front()) return 0;
  // The longest end of the prefix that the text begins with.
  for (std::size_t skipped = 0; skipped < prefix.size(); ++skipped) {
    const auto rest = prefix.begin() + static_cast<std::ptrdiff_t>(skipped);
    if (std::distance(begin, ids.end()) < std::distance(rest, prefix.end()) ||
        !std::equal(rest, prefix.end(), begin))
      continue;
    missing = skipped;
    break;
  }
  ids.insert(begin, prefix.begin(), prefix.begin() + static_cast<std::ptrdiff_t>(missing));
  return missing;
}

void DocumentEnds::put_behind(Ids& ids, std::size_t first) const {
  if (suffix.empty() || (ids.size() > first && ids.back() == suffix.back())) return;
  // The longest begin of the suffix that the text ends with.
  std::size_t present = std::min(suffix.size(), ids.size() - first);
  while (present > 0 &&
         !std::equal(suffix.begin(), suffix.begin() + static_cast<std::ptrdiff_t>(present),
                     ids.end() - static_cast<std::ptrdiff_t>(present)))
    --present;
  ids.insert(ids.end(), suffix.begin() + static_cast<std::ptrdiff_t>(present), suffix.end());
}

}  // namespace anabatic::io
