// SPDX-License-Identifier: Apache-2.0
// What `anabatic info` says of a plugin.
#pragma once
#include <string>

#include "base/json.h"

namespace anabatic::cli {

// Whether the path names a shared library, which need not be there.
bool is_plugin(const std::string& path);

// Loads it, and throws as plugin::load_plugin does.
OrderedJson plugin_json(const std::string& path);
void print_plugin(const std::string& path);

}  // namespace anabatic::cli
