// SPDX-License-Identifier: Apache-2.0
// Prepares a verb's command line for parsing. Boolean flags without a value get one. Unknown flags
// are set aside together with the values after them.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/verb.h"

namespace anabatic::cli {

// The short name of a key that users often type ("--dump"); "" for most keys.
std::string_view alias_of(std::string_view key);

// Whether this key is a boolean, whose flag may have no value.
bool is_boolean(const train::ConfigKey& key);

struct PlainArguments {
  std::vector<std::string> known;
  std::map<std::string, std::vector<std::string>> unknown;  // by flag, dashes included
};
PlainArguments make_plain(const Verb& verb, std::span<const std::string> arguments);

// InvalidArgument naming every key among `arguments.unknown` and the verbs that read it.
void reject_unread_keys(const Verb& verb, const PlainArguments& arguments);

// InvalidArgument naming every unknown flag and the nearest known one.
[[noreturn]] void reject_unknown(const Verb& verb, const PlainArguments& arguments);

}  // namespace anabatic::cli
