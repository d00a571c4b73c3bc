// SPDX-License-Identifier: Apache-2.0
// The fields of a JSON object, for errors.
#pragma once
#include <fmt/core.h>

#include <string>

namespace anabatic::io {

// `"a", "b", ...` of at most eight; "no field" for none. `object` is of nlohmann-json, in any
// order.
template <class Object>
std::string field_names(const Object& object) {
  constexpr int kMost = 8;
  std::string names;
  int count = 0;
  for (const auto& [name, value] : object.items()) {
    if (count++ == kMost) return names + ", ...";
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", name);
  }
  return names.empty() ? "no field" : names;
}

}  // namespace anabatic::io
