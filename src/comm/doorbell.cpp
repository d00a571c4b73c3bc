// SPDX-License-Identifier: Apache-2.0
#include "comm/doorbell.h"

#include <algorithm>
#include <chrono>

namespace anabatic::comm {
namespace {

// Sleeps of any length end well within the range of a clock.
std::chrono::nanoseconds limited(std::int64_t nanoseconds) {
  constexpr std::int64_t kLongest = 3'600'000'000'000;
  return std::chrono::nanoseconds(std::clamp<std::int64_t>(nanoseconds, 0, kLongest));
}

}  // namespace

std::uint64_t Doorbell::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

bool Doorbell::is_awaited() const {
  const std::lock_guard lock(mutex_);
  return is_awaited_;
}

void Doorbell::ring() {
  const std::lock_guard lock(mutex_);
  ++count_;
  (is_awaited_ ? awaiter_ : helper_).notify_one();
}

void Doorbell::begin_await() {
  const std::lock_guard lock(mutex_);
  is_awaited_ = true;
}

void Doorbell::end_await(std::uint64_t seen) {
  const std::lock_guard lock(mutex_);
  is_awaited_ = false;
  if (count_ != seen) helper_.notify_one();
}

void Doorbell::await_ring(std::uint64_t seen, std::int64_t nanoseconds) {
  std::unique_lock lock(mutex_);
  awaiter_.wait_for(lock, limited(nanoseconds), [&] { return count_ != seen; });
}

void Doorbell::help_on_ring(std::uint64_t seen, std::int64_t nanoseconds) {
  std::unique_lock lock(mutex_);
  helper_.wait_for(lock, limited(nanoseconds), [&] { return count_ != seen && !is_awaited_; });
}

}  // namespace anabatic::comm
