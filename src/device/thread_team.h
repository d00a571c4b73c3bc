// SPDX-License-Identifier: Apache-2.0
// One persistent team of compute threads, or a team that runs on the threads of a host program. The
// caller takes part; a call with one thread runs inline.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>

#include "base/rounding.h"
#include "device/cpu_limits.h"

namespace anabatic::device {

// Calls body(context) on up to `threads` threads at once, the caller's among them, and returns when
// all are done. It may bring fewer.
using HostRun = void (*)(void (*body)(void* context), void* context, int threads);

class ThreadTeam {
 public:
  // num_threads 0: as many as `limits` allow. Threads spin and are pinned if each has its own core
  // and OMP_WAIT_POLICY is not PASSIVE. Under a CPU quota they are not pinned.
  explicit ThreadTeam(int num_threads = 0, const CpuLimits& limits = cpu_limits());
  // A team without threads of its own: bodies run on those that `host` brings. Each takes one
  // thread number after the other until none is left, so bodies may wait only for tasks that were
  // handed out before theirs.
  ThreadTeam(int num_threads, HostRun host);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int num_threads() const;
  // Whether a thread spins for a short while before it sleeps.
  bool spins() const;

  // From the next call on, adds the time that each thread spends in bodies to busy[thread], in
  // nanoseconds. `busy` has num_threads() entries and must stay valid. null, the default: measures
  // nothing.
  void measure_busy(std::int64_t* busy);

  // Runs body(thread) on every thread of the team, thread in [0, num_threads), and returns when all
  // are done. Allocates nothing. The first exception thrown by a body is rethrown here after all
  // threads are done. Not reentrant.
  template <class Body>
  void run(Body&& body) {
    run_raw([](void* context,
               int thread) { (*static_cast<std::remove_reference_t<Body>*>(context))(thread); },
            const_cast<void*>(static_cast<const void*>(&body)));
  }

  // Runs body(begin, end) over a partition of [0, count) into one contiguous range for each thread.
  // Each is a multiple of `grain` except the last. The partition depends on the thread count, so
  // results must not depend on where a range begins.
  template <class Body>
  void for_range(std::int64_t count, std::int64_t grain, Body&& body) {
    if (count <= 0) return;
    const std::int64_t blocks = ceil_div(count, grain);
    run([&](int thread) {
      const std::int64_t n = num_threads();
      const std::int64_t begin = blocks * thread / n * grain;
      const std::int64_t end = blocks * (thread + 1) / n * grain;
      if (begin < end && begin < count) body(begin, end < count ? end : count);
    });
  }

  // Runs body(task) or body(task, thread) for every task in [0, count). Tasks are handed out in
  // order from one counter, for tasks of unequal cost.
  template <class Body>
  void for_tasks(std::int64_t count, Body&& body) {
    if (count <= 0) return;
    reset_tasks();
    run([&](int thread) {
      for (std::int64_t task = next_task(); task < count; task = next_task()) {
        if constexpr (std::is_invocable_v<Body&, std::int64_t, int>) {
          body(task, thread);
        } else {
          body(task);
        }
      }
    });
  }

 private:
  void run_raw(void (*body)(void*, int), void* context);
  void reset_tasks();
  std::int64_t next_task();

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace anabatic::device
