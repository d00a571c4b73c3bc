// SPDX-License-Identifier: Apache-2.0
// Changes or removes a member of a JSON object's text and leaves every other byte as it is: order,
// spacing and numbers that a parser would round.
#pragma once
#include <string>
#include <string_view>

namespace anabatic {

// `object` with the member `key` set to `value`, which is JSON text. A new member becomes the last,
// on its own line if the others have theirs. `object` must be valid JSON.
std::string with_member(std::string_view object, std::string_view key, std::string_view value);
// `object` without the member `key`, and without the comma next to it.
std::string without_member(std::string_view object, std::string_view key);

}  // namespace anabatic
