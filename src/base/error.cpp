// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

namespace anabatic {

void throw_internal_error(const char* condition, const char* file, int line,
                          const std::string& message) {
  throw InternalError(
      fmt::format("{} (internal: {} is false at {}:{})", message, condition, file, line));
}

}  // namespace anabatic
