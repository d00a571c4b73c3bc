// SPDX-License-Identifier: Apache-2.0
#include "cli/arguments.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "train/config/key_verbs.h"

namespace anabatic::cli {
namespace {

constexpr std::array<std::array<std::string_view, 2>, 7> kAliases{
    {{"compiler.disable_passes", "--disable-pass"},
     {"compiler.dump", "--dump"},
     {"compiler.explain_dispatch", "--explain-dispatch"},
     {"compiler.trivial_planners", "--trivial-planners"},
     {"memory.plan", "--plan"},
     {"model.adapter", "--adapter"},
     {"model.plugins", "--plugin"}}};

bool is_flag(std::string_view argument) { return argument.starts_with("--") && argument != "--"; }

// Every flag of the verb; true for boolean keys. Keys that it does not read are none.
std::map<std::string, bool, std::less<>> flags_of(const Verb& verb) {
  std::map<std::string, bool, std::less<>> flags{{"--help", false}};
  for (const VerbOption& option : verb.options) flags[std::string(option.name)] = false;
  if (!verb.takes_config_keys) return flags;
  for (const train::ConfigKey& key : train::config_keys()) {
    if (!train::reads_key(verb.name, key.name)) continue;
    flags["--" + key.name] = is_boolean(key);
    if (const std::string_view alias = alias_of(key.name); !alias.empty())
      flags[std::string(alias)] = is_boolean(key);
  }
  return flags;
}

// The key that `flag` names, by itself or by its alias.
const train::ConfigKey* key_of(std::string_view flag) {
  for (const train::ConfigKey& key : train::config_keys())
    if (flag.substr(2) == key.name || flag == alias_of(key.name)) return &key;
  return nullptr;
}

}  // namespace

std::string_view alias_of(std::string_view key) {
  for (const auto& [name, alias] : kAliases)
    if (name == key) return alias;
  return "";
}

bool is_boolean(const train::ConfigKey& key) {
  return key.type == "boolean" && !key.name.starts_with("fusions.");
}

PlainArguments make_plain(const Verb& verb, std::span<const std::string> arguments) {
  const auto flags = flags_of(verb);
  PlainArguments result;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!is_flag(argument)) {
      result.known.push_back(argument);
      continue;
    }
    const auto equals = argument.find('=');
    const auto found = flags.find(argument.substr(0, equals));
    const bool has_next = i + 1 < arguments.size();
    if (found == flags.end()) {
      std::vector<std::string>& values = result.unknown[argument.substr(0, equals)];
      if (equals != std::string::npos) values.push_back(argument.substr(equals + 1));
      while (i + 1 < arguments.size() && !is_flag(arguments[i + 1]))
        values.push_back(arguments[++i]);
    } else if (found->second && equals == std::string::npos &&
               !(has_next && train::parse_boolean(arguments[i + 1]))) {
      result.known.push_back(argument + "=true");
    } else {
      result.known.push_back(argument);
    }
  }
  return result;
}

void reject_unread_keys(const Verb& verb, const PlainArguments& arguments) {
  std::string text;
  for (const auto& [flag, values] : arguments.unknown)
    if (const train::ConfigKey* key = key_of(flag))
      text += fmt::format("\n  {}: only read by {}", flag,
                          fmt::join(train::verbs_reading(key->name), ", "));
  ANABATIC_REQUIRE(text.empty(), "[{0}] expected keys that {0} reads, got:{1}", verb.name, text);
}

void reject_unknown(const Verb& verb, const PlainArguments& arguments) {
  std::vector<std::string> known;
  for (const auto& [flag, boolean] : flags_of(verb)) known.push_back(flag);
  std::string text =
      fmt::format("[{}] unknown argument{}:", verb.name, arguments.unknown.size() == 1 ? "" : "s");
  for (const auto& [flag, values] : arguments.unknown) {
    const auto nearest = nearest_word(flag, known);
    text += "\n  " + flag + (nearest ? fmt::format("; did you mean {}?", *nearest) : "");
  }
  text += fmt::format("\n`anabatic {} --help` lists its options and keys", verb.name);
  throw InvalidArgument(text);
}

}  // namespace anabatic::cli
