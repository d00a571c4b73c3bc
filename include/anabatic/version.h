// SPDX-License-Identifier: Apache-2.0
// The version of the installed library.
#pragma once

namespace anabatic {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace anabatic
