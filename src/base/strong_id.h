// SPDX-License-Identifier: Apache-2.0
// Ids that index vectors and do not convert into one another: `enum class NodeId : std::uint32_t
// {}`.
#pragma once
#include <cstdint>
#include <type_traits>

namespace anabatic {

template <class Id>
requires std::is_enum_v<Id>
constexpr std::uint32_t index(Id id) { return static_cast<std::uint32_t>(id); }

}  // namespace anabatic
