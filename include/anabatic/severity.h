// SPDX-License-Identifier: Apache-2.0
// Severity of a message.
#pragma once

namespace anabatic {

enum class Severity { kInfo, kWarning, kError };

}  // namespace anabatic
