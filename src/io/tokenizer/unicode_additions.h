// SPDX-License-Identifier: Apache-2.0
// What the properties of Unicode 16, in the Oniguruma of Hugging Face, hold beyond those of the
// distribution's libonig (Unicode 14).
#pragma once
#include <span>
#include <string_view>

namespace anabatic::io::tokenizer {

// `changes` are words: `A` or `A-B` adds characters (hexadecimal), `-A` takes some away, `@name`
// adds what `name` gains, `!name` takes that away, `=name` adds all that `name` holds.
// Properties of other names are the same in both.
struct PropertyAddition {
  std::string_view name;  // without spaces, in lower case
  std::string_view changes;
};

std::span<const PropertyAddition> property_additions();

}  // namespace anabatic::io::tokenizer
