// SPDX-License-Identifier: Apache-2.0
#include "train/config/config_key.h"

namespace anabatic::train {

const std::string& only(Values values) {
  ANABATIC_REQUIRE(values.size() == 1, "expected one value, got {}", values.size());
  return values[0];
}

std::string yaml_quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\x{:02X}", c);
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string show_double(double value) { return fmt::format("{}", value); }

std::string joined(const std::vector<std::string>& words, const char* separator) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : separator) + word;
  return out;
}

std::string bounds_of(double lowest, double highest) {
  constexpr double kBeyondUse = 1e6;
  if (highest >= kBeyondUse) return fmt::format(">= {}", lowest);
  return fmt::format("{} to {}", lowest, highest);
}

std::string bounds_of(std::int64_t lowest, std::int64_t highest) {
  if (highest == kNoBound) return fmt::format(">= {}", lowest);
  return fmt::format("{} to {}", lowest, highest);
}

}  // namespace anabatic::train
