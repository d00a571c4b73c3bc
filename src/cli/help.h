// SPDX-License-Identifier: Apache-2.0
// The help texts: all verbs, one verb with its keys, every key as Markdown. All of them are made
// from the verbs and the table of keys.
#pragma once
#include <string>

#include "cli/verb.h"

namespace anabatic::cli {

// What the program is, one line for each verb, and three commands to begin with.
std::string overview();

// The options of the verb, then the keys that it reads by section.
std::string help_of(const Verb& verb);

// docs/reference/keys.md.
std::string keys_markdown();

}  // namespace anabatic::cli
