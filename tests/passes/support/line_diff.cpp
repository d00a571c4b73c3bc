// SPDX-License-Identifier: Apache-2.0
#include "passes/support/line_diff.h"

#include <algorithm>
#include <vector>

namespace anabatic::passes {
namespace {

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace

std::string line_diff(std::string_view want, std::string_view got) {
  const auto a = split_lines(want), b = split_lines(got);
  // common[i][j]: length of the longest common subsequence of a[i..] and b[j..].
  std::vector<std::vector<std::size_t>> common(a.size() + 1,
                                               std::vector<std::size_t>(b.size() + 1, 0));
  for (std::size_t i = a.size(); i-- > 0;)
    for (std::size_t j = b.size(); j-- > 0;)
      common[i][j] =
          a[i] == b[j] ? common[i + 1][j + 1] + 1 : std::max(common[i + 1][j], common[i][j + 1]);
  std::string out;
  const auto put = [&](const char* mark, std::string_view line) {
    out += mark;
    out += line;
    out += '\n';
  };
  std::size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    if (i < a.size() && j < b.size() && a[i] == b[j]) {
      put("  ", a[i]);
      ++i, ++j;
    } else if (j == b.size() || (i < a.size() && common[i + 1][j] >= common[i][j + 1])) {
      put("- ", a[i++]);
    } else {
      put("+ ", b[j++]);
    }
  }
  return out;
}

}  // namespace anabatic::passes
