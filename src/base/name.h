// SPDX-License-Identifier: Apache-2.0
// Interned strings: cheap to copy, compare and hash, valid for the whole process. The empty string
// is Name{0}.
#pragma once
#include <cstdint>
#include <string_view>

namespace anabatic {

// Ids depend on the order of interning: never print, sort or hash by them where output must be
// byte-stable.
enum class Name : std::uint32_t {};

// Thread-safe; takes a lock, so not for a step's hot path.
Name intern(std::string_view text);
std::string_view text(Name name);

}  // namespace anabatic
