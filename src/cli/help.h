// SPDX-License-Identifier: Apache-2.0
// What the binary says about itself: all verbs, one verb with its keys, every key as Markdown. All
// of it comes from the verbs and from the table of keys.
#pragma once
#include <string>

#include "cli/verb.h"

namespace anabatic::cli {

// What it is, each verb in a line, and three commands to begin with.
std::string overview();

// The options of the verb, then the keys that it reads by section.
std::string help_of(const Verb& verb);

// docs/reference/keys.md.
std::string keys_markdown();

}  // namespace anabatic::cli
