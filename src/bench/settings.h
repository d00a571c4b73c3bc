// SPDX-License-Identifier: Apache-2.0
// The sizes of one benchmark, as flags give them. Each reader gives its default and its bounds.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::bench {

struct SettingHelp {
  std::string_view name, help;
};
// Every setting that some benchmark reads, in alphabetical order.
std::span<const SettingHelp> all_settings();

class Settings {
 public:
  using Texts = std::map<std::string, std::string, std::less<>>;
  Settings() = default;
  explicit Settings(Texts given) : given_(std::move(given)) {}

  // Each records the value in effect. InvalidArgument naming the setting for an invalid one.
  std::int64_t integer(std::string_view name, std::int64_t fallback, std::int64_t least = 1);
  double number(std::string_view name, double fallback, double least, double most);
  std::string word(std::string_view name, const std::vector<std::string>& choices);  // default: 1st

  // InvalidArgument naming each setting that was given but not read, and the nearest one that was.
  void require_all_read(std::string_view benchmark) const;
  const Texts& in_effect() const { return read_; }

 private:
  const std::string* find(std::string_view name) const;

  Texts given_, read_;
};

}  // namespace anabatic::bench
