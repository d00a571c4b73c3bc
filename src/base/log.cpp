// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <cstdio>

#include "base/environment.h"

namespace anabatic {

void log_line(LogLevel level, const std::string& message) {
  static const bool show_debug = environment::shows_debug_log();
  if (level == LogLevel::kDebug && !show_debug) return;
  const char* prefix = level == LogLevel::kWarning ? "warning: "
                       : level == LogLevel::kError ? "error: "
                                                   : "";
  const std::string line = fmt::format("{}{}\n", prefix, message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace anabatic
