// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <mutex>

namespace anabatic {
namespace {

struct ProcessSink {
  std::mutex mutex;
  LogSink sink;
};

ProcessSink& process_sink() {
  static ProcessSink* instance = new ProcessSink;  // never destroyed: threads may outlive main
  return *instance;
}

thread_local LogScope* innermost = nullptr;

}  // namespace

void set_log_sink(LogSink sink) {
  ProcessSink& process = process_sink();
  const std::lock_guard lock(process.mutex);
  process.sink = std::move(sink);
}

LogScope::LogScope(LogSink sink) : sink_(std::move(sink)), outer_(innermost) { innermost = this; }

LogScope::~LogScope() { innermost = outer_; }

void log_line(Severity severity, const std::string& message) {
  if (innermost != nullptr) {
    if (innermost->sink_) innermost->sink_(severity, message);
    return;
  }
  ProcessSink& process = process_sink();
  const std::lock_guard lock(process.mutex);
  if (process.sink) process.sink(severity, message);
}

}  // namespace anabatic
