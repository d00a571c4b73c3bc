// SPDX-License-Identifier: Apache-2.0
// Which verbs of the command line read which keys: what their help lists and what they take as
// flags.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::train {

// The verbs that read `key`, in the order of their help. For a key in no row of the table: those
// that take a whole run config.
std::vector<std::string_view> verbs_reading(std::string_view key);

bool reads_key(std::string_view verb, std::string_view key);

// One phrase about the keys "SECTION.*", such as "the model"; "" for an unknown section.
std::string_view section_title(std::string_view section);

}  // namespace anabatic::train
