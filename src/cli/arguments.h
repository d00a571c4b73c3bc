// SPDX-License-Identifier: Apache-2.0
// A verb's command line made plain before it is parsed: bare boolean flags get their value, flags
// that nobody knows are set aside with what follows them.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/verb.h"

namespace anabatic::cli {

// The short name of a key that a user types often ("--dump"); "" for most.
std::string_view alias_of(std::string_view key);

// Is this key a boolean, whose flag may stand alone?
bool is_boolean(const train::ConfigKey& key);

struct PlainArguments {
  std::vector<std::string> known;
  std::map<std::string, std::vector<std::string>> unknown;  // by flag, dashes included
};
PlainArguments make_plain(const Verb& verb, std::span<const std::string> arguments);

// InvalidArgument naming every key that stands among `arguments.unknown`, and the verbs that read
// it.
void reject_unread_keys(const Verb& verb, const PlainArguments& arguments);

// InvalidArgument naming every unknown flag and the nearest known one.
[[noreturn]] void reject_unknown(const Verb& verb, const PlainArguments& arguments);

}  // namespace anabatic::cli
