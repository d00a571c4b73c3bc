// SPDX-License-Identifier: Apache-2.0
// How much a message matters.
#pragma once

namespace anabatic {

enum class Severity { kInfo, kWarning, kError };

}  // namespace anabatic
