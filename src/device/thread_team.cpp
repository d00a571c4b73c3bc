// SPDX-License-Identifier: Apache-2.0
#include "device/thread_team.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/denormals.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace anabatic::device {
namespace {

// About 50 us of pauses: longer gaps than that are between steps, where a core is better left idle.
constexpr int kSpins = 2000;
constexpr int kMostThreads = 4096;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Spins for a short while when each thread has a core of its own, then sleeps, until `value` is no
// longer `old`.
int wait_while(const std::atomic<int>& value, int old, bool spins) {
  int now = value.load(std::memory_order_acquire);
  for (int i = 0; spins && now == old && i < kSpins; ++i) {
    pause();
    now = value.load(std::memory_order_acquire);
  }
  while (now == old) {
    value.wait(old, std::memory_order_acquire);
    now = value.load(std::memory_order_acquire);
  }
  return now;
}

}  // namespace

struct ThreadTeam::Impl {
  int num_threads = 1;
  HostRun host = nullptr;  // null: the workers
  bool spins = false;
  void (*body)(void*, int) = nullptr;
  void* context = nullptr;
  std::int64_t* busy = nullptr;
  bool stop = false;
  std::exception_ptr error;
  std::atomic_flag has_error = ATOMIC_FLAG_INIT;
  alignas(64) std::atomic<int> generation{0};
  alignas(64) std::atomic<int> remaining{0};
  alignas(64) std::atomic<std::int64_t> next_task{0};
  alignas(64) std::atomic<int> next_number{0};  // of the threads of a host
  std::vector<std::thread> workers;

  void call(int thread) noexcept {
    if (busy == nullptr) return call_body(thread);
    const auto begin = std::chrono::steady_clock::now();
    call_body(thread);
    const auto time = std::chrono::steady_clock::now() - begin;
    busy[thread] += std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  }

  void call_body(int thread) noexcept {
    try {
      body(context, thread);
    } catch (...) {
      if (!has_error.test_and_set()) error = std::current_exception();
    }
  }

  void work(int thread) {
    const DenormalsAreZero mode;
    for (int seen = 0;;) {
      seen = wait_while(generation, seen, spins);
      if (stop) return;
      call(thread);
      if (remaining.fetch_sub(1, std::memory_order_acq_rel) == 1) remaining.notify_one();
    }
  }

  static void take_numbers(void* impl) {
    const DenormalsAreZero mode;
    auto& self = *static_cast<Impl*>(impl);
    for (int thread; (thread = self.next_number.fetch_add(1)) < self.num_threads;)
      self.call(thread);
  }

  void run_on_host() {
    next_number.store(0);
    if (num_threads > 1) host(&take_numbers, this, num_threads);
    take_numbers(this);  // those that are left
  }

  void run_on_workers() {
    const DenormalsAreZero mode;
    if (num_threads > 1) {
      remaining.store(num_threads - 1, std::memory_order_relaxed);
      start_generation();
    }
    call(0);
    for (int left = remaining.load(std::memory_order_acquire); left != 0;)
      left = wait_while(remaining, left, spins);
  }

  void start_generation() {
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
  }

  void join_all() {
    stop = true;
    start_generation();
    for (std::thread& worker : workers) worker.join();
  }
};

ThreadTeam::ThreadTeam(int num_threads, const CpuLimits& limits) : impl_(std::make_unique<Impl>()) {
  ANABATIC_REQUIRE(num_threads >= 0 && num_threads <= kMostThreads,
                   "[threads] expected a count in [0, {}], got {}", kMostThreads, num_threads);
  impl_->num_threads = num_threads > 0 ? num_threads : limits.num_threads();
  impl_->spins = limits.may_spin(impl_->num_threads);
  // Under a quota others share these cores: the system knows which of them are idle.
  const bool pins = impl_->spins && !limits.quota;
  try {
    for (int thread = 1; thread < impl_->num_threads; ++thread) {
      impl_->workers.emplace_back([impl = impl_.get(), thread] { impl->work(thread); });
      if (!pins) continue;
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(limits.cores[static_cast<std::size_t>(thread)], &set);
      // A refusal costs speed only.
      (void)pthread_setaffinity_np(impl_->workers.back().native_handle(), sizeof(set), &set);
    }
  } catch (const std::system_error& refused) {
    impl_->join_all();
    throw ResourceError(
        fmt::format("[threads] cannot start {} threads: {}", impl_->num_threads, refused.what()));
  }
}

ThreadTeam::ThreadTeam(int num_threads, HostRun host) : impl_(std::make_unique<Impl>()) {
  ANABATIC_REQUIRE(num_threads >= 1 && num_threads <= kMostThreads,
                   "[threads] expected a count in [1, {}], got {}", kMostThreads, num_threads);
  ANABATIC_REQUIRE(host != nullptr, "[threads] expected a function that runs bodies, got null");
  impl_->num_threads = num_threads;
  impl_->host = host;
}

ThreadTeam::~ThreadTeam() { impl_->join_all(); }

int ThreadTeam::num_threads() const { return impl_->num_threads; }

bool ThreadTeam::spins() const { return impl_->spins; }

void ThreadTeam::measure_busy(std::int64_t* busy) { impl_->busy = busy; }

void ThreadTeam::run_raw(void (*body)(void*, int), void* context) {
  Impl& impl = *impl_;
  impl.body = body;
  impl.context = context;
  impl.host != nullptr ? impl.run_on_host() : impl.run_on_workers();
  if (impl.has_error.test()) {
    const std::exception_ptr error = std::exchange(impl.error, nullptr);
    impl.has_error.clear();
    std::rethrow_exception(error);
  }
}

void ThreadTeam::reset_tasks() { impl_->next_task.store(0, std::memory_order_relaxed); }

std::int64_t ThreadTeam::next_task() {
  return impl_->next_task.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace anabatic::device
