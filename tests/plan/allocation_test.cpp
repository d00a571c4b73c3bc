// SPDX-License-Identifier: Apache-2.0
// A step allocates nothing: every path to the heap is counted.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "device/thread_team.h"
#include "device/topology.h"
#include "plan/training_fixture.h"

namespace {

std::atomic<long> num_allocations{0};

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
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
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void* malloc(std::size_t size) {
  num_allocations.fetch_add(1);
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  num_allocations.fetch_add(1);
  return __libc_calloc(count, size);
}
void* realloc(void* block, std::size_t size) {
  num_allocations.fetch_add(1);
  return __libc_realloc(block, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  num_allocations.fetch_add(1);
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** block, std::size_t alignment, std::size_t size) {
  num_allocations.fetch_add(1);
  *block = __libc_memalign(alignment, size);
  return *block ? 0 : 12;  // ENOMEM
}
}
#endif

namespace anabatic::testing {
namespace {

TEST(Allocations, AreCounted) {
  const long before = num_allocations;
  void* volatile block = std::malloc(100);
  int* volatile number = new int(1);
  EXPECT_GE(num_allocations - before, 2);
  std::free(block);
  delete number;
}

long allocations_of_step(lower::Precision precision, const std::string& only_kernels) {
  StepsOptions options;
  options.compile.precision = precision;
  options.compile.only_kernels = only_kernels;
  const lower::Compiled compiled =
      lower::compile(tied_moe_graph(2), options.compile, device::describe_cpu(2));
  runtime::StateStore store;
  device::ThreadTeam team(2);
  runtime::Executor executor(compiled.program, store, team);
  initialise(compiled, store, options.seed);
  long worst = 0;
  for (int step = 0; step < 4; ++step)
    for (bool is_first : {true, false}) {
      fill_inputs(compiled, executor, options, step, is_first ? 0 : 1);
      const long before = num_allocations;
      executor.run(spec::Action::kForward, is_first);
      executor.run(spec::Action::kBackward, is_first);
      if (!is_first) executor.run(spec::Action::kUpdate);
      if (step >= 2) worst = std::max<long>(worst, num_allocations - before);
    }
  return worst;
}

TEST(Allocations, DoNotHappenInAStep) {
  for (auto precision : {lower::Precision::kFp32, lower::Precision::kBf16})
    for (const char* kernels : {"", "ref"})
      EXPECT_EQ(allocations_of_step(precision, kernels), 0)
          << (precision == lower::Precision::kBf16 ? "bf16 " : "fp32 ") << kernels;
}

}  // namespace
}  // namespace anabatic::testing
