// SPDX-License-Identifier: Apache-2.0
// Which bytes of a text a changed text stems from, such as the text of its tokens.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace anabatic::io {

// For each byte of `made` the byte of `original` that it stems from; never falling. Exact where
// `made` is `original`, but for spaces written as U+2581 and characters put in or left out. Where a
// normalizer changed characters, the nearest place after which both go on alike.
void align_text(std::string_view made, std::string_view original,
                std::vector<std::uint32_t>& places);

}  // namespace anabatic::io
