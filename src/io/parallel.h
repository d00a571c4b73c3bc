// SPDX-License-Identifier: Apache-2.0
// Independent tasks over a few threads: for files, which are read before any thread team exists.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace anabatic::io {

// Those that share the work on files: as many as the process may run at once, and a few at most,
// because each has buffers.
inline int threads_for_files() {
  constexpr unsigned kMost = 16;
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kMost));
}

// Runs body(task) for every task in [0, count), in ascending order of begin, on at most `threads`
// threads with the caller among them. Rethrows the error of the lowest task that failed; tasks
// above one that failed may be left out.
template <class Body>
void parallel_tasks(std::int64_t count, int threads, const Body& body) {
  std::atomic<std::int64_t> next = 0;
  std::mutex mutex;
  std::int64_t failed = count;
  std::exception_ptr error;
  const auto work = [&] {
    for (std::int64_t task = next++; task < count; task = next++) {
      try {
        body(task);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (task < failed) {
          failed = task;
          error = std::current_exception();
        }
        next = count;  // tasks below this one have begun
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    const std::int64_t wanted = std::min<std::int64_t>(std::max(threads, 1), count);
    for (std::int64_t i = 1; i < wanted; ++i) helpers.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace anabatic::io
