// SPDX-License-Identifier: Apache-2.0
// What other trainers call a key: a hint for those who come from them.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace anabatic::train {

// The key that `name`, with or without a section before it, means in transformers, PEFT or TRL. Or
// the only one of `keys` that ends in it.
std::optional<std::string> key_of_other_name(std::string_view name,
                                             std::span<const std::string> keys);

}  // namespace anabatic::train
