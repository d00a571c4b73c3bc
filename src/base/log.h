// SPDX-License-Identifier: Apache-2.0
// Log lines for people, on standard error so that standard output stays for results.
#pragma once
#include <fmt/core.h>

#include <string>

namespace anabatic {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Thread-safe; writes one whole line. kDebug shows only under ANABATIC_LOG=debug.
void log_line(LogLevel level, const std::string& message);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace anabatic
