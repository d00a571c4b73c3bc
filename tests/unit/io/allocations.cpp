// SPDX-License-Identifier: Apache-2.0
#include "unit/io/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> count = 0;
std::atomic<std::size_t> largest = 0;

}  // namespace

// std::stable_sort takes this one.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++count;
  std::size_t seen = largest;
  while (size > seen && !largest.compare_exchange_weak(seen, size)) {
  }
  return std::malloc(size == 0 ? 1 : size);
}
void* operator new(std::size_t size) {
  if (void* memory = operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace anabatic::io {

std::int64_t num_allocations() { return count; }
std::size_t largest_allocation_bytes() { return largest; }
void reset_largest_allocation() { largest = 0; }

}  // namespace anabatic::io
