// SPDX-License-Identifier: Apache-2.0
// Wakes one of the two threads of a rank that may move its messages: the one that awaits an
// exchange, or while there is none the helper.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace anabatic::comm {

class Doorbell {
 public:
  std::uint64_t count() const;  // of rings so far
  void ring();

  // From begin_await to end_await the awaiter alone is woken, and is_awaited() holds. end_await
  // wakes the helper if the bell rang after `seen`.
  void begin_await();
  void end_await(std::uint64_t seen);
  bool is_awaited() const;

  // Return when the bell has rung after `seen`, or after so many nanoseconds. The helper also waits
  // for the end of an await.
  void await_ring(std::uint64_t seen, std::int64_t nanoseconds);
  void help_on_ring(std::uint64_t seen, std::int64_t nanoseconds);

 private:
  mutable std::mutex mutex_;
  std::condition_variable awaiter_, helper_;
  std::uint64_t count_ = 0;
  bool is_awaited_ = false;
};

}  // namespace anabatic::comm
