// SPDX-License-Identifier: Apache-2.0
// What fields of a tokenizer.json hold. Errors name the field, as those of JsonNode do.
#pragma once
#include <cstdint>
#include <string>

#include "base/json_node.h"

namespace anabatic::io::tokenizer {

// Ids beyond this are taken for damage: tables are indexed by id.
inline constexpr std::int32_t kMaxId = (1 << 24) - 1;
// Components nested deeper are refused.
inline constexpr int kMaxDepth = 32;

// The member `type`, "" if there is none.
std::string type_of(const JsonNode& component);
std::string character_of(const JsonNode& node);  // a string of one character
std::int32_t id_of(const JsonNode& node);        // 0 .. kMaxId
std::int64_t count_of(const JsonNode& node);     // 0 .. 2^31 - 1

}  // namespace anabatic::io::tokenizer
