// SPDX-License-Identifier: Apache-2.0
#include "base/name.h"

#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/error.h"

namespace anabatic {
namespace {

struct Table {
  std::mutex mutex;
  std::deque<std::string> texts{""};  // a deque keeps addresses stable for the views in `ids`
  std::unordered_map<std::string_view, std::uint32_t> ids{{"", 0}};
};

Table& table() {
  static Table* instance = new Table;  // never destroyed: names outlive static destructors
  return *instance;
}

}  // namespace

Name intern(std::string_view text) {
  Table& names = table();
  std::lock_guard lock(names.mutex);
  if (auto found = names.ids.find(text); found != names.ids.end()) return Name{found->second};
  const auto id = static_cast<std::uint32_t>(names.texts.size());
  names.ids.emplace(names.texts.emplace_back(text), id);
  return Name{id};
}

std::string_view text(Name name) {
  Table& names = table();
  std::lock_guard lock(names.mutex);
  const auto id = static_cast<std::uint32_t>(name);
  ANABATIC_CHECK(id < names.texts.size(), "[name] id {} was never interned", id);
  return names.texts[id];
}

}  // namespace anabatic
