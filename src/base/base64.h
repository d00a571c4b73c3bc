// SPDX-License-Identifier: Apache-2.0
// Bytes as the characters A-Z, a-z, 0-9, + and /, with = at the end (RFC 4648).
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace anabatic {

std::string encode_base64(std::string_view bytes);

// Nothing unless `text` is what encode_base64 gives.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace anabatic
