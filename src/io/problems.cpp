// SPDX-License-Identifier: Apache-2.0
#include "io/problems.h"

#include <algorithm>

#include "base/error.h"

namespace anabatic::io {

std::string shown(std::string_view name) {
  std::string text(name.substr(0, 200));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return name.size() > 200 ? text + "..." : text;
}

std::string problem_text(std::string_view format, std::string_view where,
                         const std::vector<std::string>& problems) {
  constexpr std::size_t kMaxListed = 50;
  const std::size_t listed = std::min(problems.size(), kMaxListed);
  std::string text = fmt::format("[{}] {}: {} problem{}", format, where, problems.size(),
                                 problems.size() == 1 ? "" : "s");
  for (std::size_t i = 0; i < listed; ++i) text += "\n  " + problems[i];
  if (listed < problems.size())
    text += fmt::format("\n  ... and {} more", problems.size() - listed);
  return text;
}

void throw_if_any(std::string_view format, std::string_view where,
                  const std::vector<std::string>& problems) {
  if (!problems.empty()) throw InvalidArgument(problem_text(format, where, problems));
}

}  // namespace anabatic::io
