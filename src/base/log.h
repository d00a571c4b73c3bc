// SPDX-License-Identifier: Apache-2.0
// Messages for people. The library prints none: they go to the sink that the host gives, or are
// dropped.
#pragma once
#include <fmt/core.h>

#include <functional>
#include <string>

#include "anabatic/severity.h"

namespace anabatic {

using LogSink = std::function<void(Severity, const std::string&)>;

// For threads without a LogScope, until the next call; empty: messages are dropped.
void set_log_sink(LogSink sink);

// While it exists, messages of the thread that made it go to `sink`. Scopes of a thread nest, and
// the innermost gets the message. So two runs in one process each get their own messages.
class LogScope {
 public:
  explicit LogScope(LogSink sink);
  ~LogScope();
  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;

 private:
  friend void log_line(Severity severity, const std::string& message);
  LogSink sink_;
  LogScope* outer_;
};

// Thread-safe; one message, without a newline at its end.
void log_line(Severity severity, const std::string& message);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(Severity::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(Severity::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace anabatic
