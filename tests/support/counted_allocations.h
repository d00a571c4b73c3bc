// SPDX-License-Identifier: Apache-2.0
// Counts every block that the program takes from the heap. One source of a test program includes
// it, for it defines malloc and its kin.
#pragma once
#include <atomic>
#include <cstddef>
#include <new>

namespace {

std::atomic<long> num_allocations{0};

}  // namespace

#ifdef ANABATIC_IS_SANITIZED
// A sanitizer owns malloc; it reports each block to a hook.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*,
                                                                  std::size_t),
                                                         void (*)(const volatile void*));
namespace {
const int is_installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t) { num_allocations.fetch_add(1); },
    [](const volatile void*) {});
}  // namespace
#else
// operator new and the C++ library come through these too.
namespace {
// Null: all blocks count. Else those for whose caller of malloc it is true.
std::atomic<bool (*)(const void*)> counts_caller{nullptr};

void count_block(const void* caller) {
  bool (*const counts)(const void*) = counts_caller.load(std::memory_order_relaxed);
  if (counts == nullptr || counts(caller)) num_allocations.fetch_add(1);
}
}  // namespace
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void* malloc(std::size_t size) {
  count_block(__builtin_return_address(0));
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  count_block(__builtin_return_address(0));
  return __libc_calloc(count, size);
}
void* realloc(void* block, std::size_t size) {
  count_block(__builtin_return_address(0));
  return __libc_realloc(block, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  count_block(__builtin_return_address(0));
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** block, std::size_t alignment, std::size_t size) {
  count_block(__builtin_return_address(0));
  *block = __libc_memalign(alignment, size);
  return *block ? 0 : 12;  // ENOMEM
}
}
#endif
