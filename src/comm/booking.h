// SPDX-License-Identifier: Apache-2.0
// Arrays in the workspace of an exchange, which allocates nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

#include "base/error.h"
#include "base/rounding.h"

namespace anabatic::comm {

inline constexpr std::int64_t kBookingAlignment = 64;

// Bytes that Booking::take<T>(count) takes.
template <class T>
std::int64_t booked(std::int64_t count) {
  return round_up(static_cast<std::int64_t>(sizeof(T)) * count, kBookingAlignment);
}

// Takes arrays from the front of a workspace. InternalError: it is too small, or not aligned.
class Booking {
 public:
  explicit Booking(std::span<std::byte> workspace) : rest_(workspace) {
    ANABATIC_CHECK(reinterpret_cast<std::uintptr_t>(workspace.data()) % kBookingAlignment == 0,
                   "[exchange] a workspace that is not aligned to {} bytes", kBookingAlignment);
  }
  template <class T>
  std::span<T> take(std::size_t count) {
    T* first = static_cast<T*>(raw(sizeof(T) * count));
    for (std::size_t i = 0; i < count; ++i) new (first + i) T{};
    return {first, count};
  }
  void* raw(std::size_t bytes) {
    const std::size_t taken = round_up(bytes, static_cast<std::size_t>(kBookingAlignment));
    ANABATIC_CHECK(taken <= rest_.size(), "[exchange] a workspace with {} bytes left, {} needed",
                   rest_.size(), taken);
    void* result = rest_.data();
    rest_ = rest_.subspan(taken);
    return result;
  }

 private:
  std::span<std::byte> rest_;
};

}  // namespace anabatic::comm
