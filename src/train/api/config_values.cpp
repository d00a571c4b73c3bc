// SPDX-License-Identifier: Apache-2.0
#include "train/api/config_values.h"

#include <fmt/core.h>

#include "train/run_config.h"

namespace anabatic {
namespace train {

Texts values(std::int64_t value) { return {std::to_string(value)}; }
Texts values(double value) { return {fmt::format("{}", value)}; }
Texts values(bool value) { return {value ? "true" : "false"}; }
Texts values(const std::string& value) { return {value}; }
Texts values(const std::vector<std::string>& value) { return value; }

Texts values(const std::vector<double>& value) {
  Texts texts;
  for (const double number : value) texts.push_back(fmt::format("{}", number));
  return texts;
}

Texts values(const std::map<std::string, std::string>& value) {
  Texts texts;
  for (const auto& [name, text] : value) texts.push_back(fmt::format("{}={}", name, text));
  return texts;
}

Texts word_at(std::size_t place, Words words) {
  return {place < words.size() ? words.begin()[place] : std::to_string(place)};
}

}  // namespace train

Settings to_settings(const Config& config) {
  Settings settings = train::all_settings(config);
  for (const auto& [key, value] : train::all_settings({}))
    if (settings.at(key) == value) settings.erase(key);
  return settings;
}

std::map<std::string, std::string> resolve_keys(const Settings& settings,
                                                const std::string& yaml_file) {
  const train::RunConfig run =
      train::load_run_config(yaml_file, {settings.begin(), settings.end()});
  std::map<std::string, std::string> keys;
  for (const train::ConfigKey& key : train::config_keys()) keys[key.name] = key.show(run);
  return keys;
}

}  // namespace anabatic
