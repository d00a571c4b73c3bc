// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "device/thread_team.h"
#include "device/topology.h"

namespace anabatic::device {
namespace {

// Every thread number of a team of `count`, once a run.
void expect_every_thread(ThreadTeam& team, int count, int num_runs) {
  ASSERT_EQ(team.num_threads(), count);
  std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
  for (int repeat = 0; repeat < num_runs; ++repeat)
    team.run([&](int thread) { ++calls[static_cast<std::size_t>(thread)]; });
  for (const auto& number : calls) EXPECT_EQ(number.load(), num_runs);
}

TEST(ThreadTeam, RunsEveryThreadOnce) {
  for (int count : {1, 2, 3, 7}) {
    ThreadTeam team(count);
    expect_every_thread(team, count, 500);
  }
}

TEST(ThreadTeam, RangesAndTasksCoverEachElementOnce) {
  for (int count : {1, 2, 3}) {
    ThreadTeam team(count);
    for (std::int64_t size : {0, 1, 2, 63, 64, 65, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(size));
      team.for_range(size, 16, [&](std::int64_t begin, std::int64_t end) {
        EXPECT_EQ(begin % 16, 0);
        for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
      });
      team.for_tasks(size, [&](std::int64_t task) { ++seen[static_cast<std::size_t>(task)]; });
      for (const auto& number : seen) EXPECT_EQ(number.load(), 2);
    }
  }
}

TEST(ThreadTeam, RethrowsAndGoesOn) {
  ThreadTeam team(3);
  for (int bad = 0; bad < 3; ++bad) {
    EXPECT_THROW(team.run([&](int thread) {
      if (thread == bad) throw std::runtime_error("body");
    }),
                 std::runtime_error);
    std::atomic<int> calls{0};
    team.run([&](int) { ++calls; });
    EXPECT_EQ(calls.load(), 3);
  }
}

TEST(ThreadTeam, MeasuresWhatEachThreadSpendsInBodiesWhenAsked) {
  ThreadTeam team(3);
  std::vector<std::int64_t> busy(3, 0);
  const auto nap = [](int thread) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5 * thread));
  };
  team.run(nap);
  EXPECT_EQ(busy, std::vector<std::int64_t>(3, 0));
  team.measure_busy(busy.data());
  for (int repeat = 0; repeat < 2; ++repeat) team.run(nap);
  for (std::int64_t thread = 0; thread < 3; ++thread)  // a nap lasts at least what it is asked
    EXPECT_GE(busy[static_cast<std::size_t>(thread)], 2 * 5'000'000 * thread);
  team.measure_busy(nullptr);
  const std::vector<std::int64_t> before = busy;
  team.run(nap);
  EXPECT_EQ(busy, before);
}

TEST(ThreadTeam, FlushesDenormalsInsideOnly) {
  ThreadTeam team(2);
  volatile float tiny = 1e-38f, tenth = 0.1f;
  std::atomic<int> zeros{0};
  team.run([&](int) {
    if (tiny * tenth == 0.0f) ++zeros;
  });
#if defined(__x86_64__)
  EXPECT_EQ(zeros.load(), 2);
#endif
  EXPECT_NE(tiny * tenth, 0.0f);
}

// A host that brings as many threads as it is asked for, one less, or the caller alone.
void all_threads(void (*body)(void*), void* context, int threads) {
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(body, context);
  body(context);
  for (std::thread& thread : others) thread.join();
}
void fewer_threads(void (*body)(void*), void* context, int threads) {
  all_threads(body, context, threads - 1);
}
void one_thread(void (*body)(void*), void* context, int) { body(context); }
void no_thread(void (*)(void*), void*, int) {}

constexpr HostRun kHosts[] = {all_threads, fewer_threads, one_thread, no_thread};

TEST(ThreadTeamOfAHost, RunsEveryThreadNumberOnce) {
  for (const HostRun host : kHosts)
    for (int count : {1, 2, 3, 7}) {
      ThreadTeam team(count, host);
      expect_every_thread(team, count, 20);
    }
}

// Each task waits for the one before it, as those of attention's gradient do.
TEST(ThreadTeamOfAHost, EndsWhereTasksWaitForEarlierOnes) {
  for (const HostRun host : kHosts) {
    ThreadTeam team(3, host);
    std::atomic<std::int64_t> turn{0};
    team.for_tasks(200, [&](std::int64_t task) {
      while (turn.load() != task) std::this_thread::yield();
      ++turn;
    });
    EXPECT_EQ(turn.load(), 200);
  }
}

TEST(ThreadTeamOfAHost, RethrowsAndGoesOn) {
  for (const HostRun host : kHosts) {
    ThreadTeam team(3, host);
    EXPECT_THROW(team.run([&](int thread) {
      if (thread == 1) throw std::runtime_error("body");
    }),
                 std::runtime_error);
    std::atomic<int> calls{0};
    team.run([&](int) { ++calls; });
    EXPECT_EQ(calls.load(), 3);
  }
}

TEST(ThreadTeamOfAHost, FlushesDenormalsInsideOnly) {
  ThreadTeam team(2, all_threads);
  volatile float tiny = 1e-38f, tenth = 0.1f;
  std::atomic<int> zeros{0};
  team.run([&](int) {
    if (tiny * tenth == 0.0f) ++zeros;
  });
#if defined(__x86_64__)
  EXPECT_EQ(zeros.load(), 2);
#endif
  EXPECT_NE(tiny * tenth, 0.0f);
}

// Also for a set that this machine lacks, as AVX-VNNI is on many machines with AVX-512.
TEST(InstructionSets, EndAtTheLimit) {
  const char* const before = std::getenv("ANABATIC_MAX_ISA");
  const std::string kept = before != nullptr ? before : "";
  const std::vector<std::string> all{"avx2",        "avx_vnni",    "avx512f",
                                     "avx512_vnni", "avx512_bf16", "amx_bf16"};
  unsetenv("ANABATIC_MAX_ISA");
  const spec::DeviceSpec whole = describe_cpu(1);
  EXPECT_EQ(whole.has("avx_vnni"), whole.has("avx2") && has_avx_vnni());
  for (std::size_t limit = 0; limit <= all.size(); ++limit) {
    setenv("ANABATIC_MAX_ISA", limit == 0 ? "portable" : all[limit - 1].c_str(), 1);
    const spec::DeviceSpec cut = describe_cpu(1);
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(cut.has(all[i]), i < limit && whole.has(all[i])) << all[i] << " of " << limit;
  }
  kept.empty() ? unsetenv("ANABATIC_MAX_ISA") : setenv("ANABATIC_MAX_ISA", kept.c_str(), 1);
}

// Measured once for each number of threads: two measurements would differ.
TEST(Peaks, AreMeasuredOnceAProcess) {
  ThreadTeam one(1), two(2);
  const spec::DeviceSpec first = probe_cpu(one, true), again = probe_cpu(one, true),
                         other = probe_cpu(two, true);
  EXPECT_GT(first.fp32_flops_per_second, 0);
  EXPECT_EQ(first.fp32_flops_per_second, again.fp32_flops_per_second);
  EXPECT_EQ(first.copy_bytes_per_second, again.copy_bytes_per_second);
  EXPECT_NE(first.copy_bytes_per_second, other.copy_bytes_per_second);
  EXPECT_EQ(probe_cpu(one, false).fp32_flops_per_second, 0);
}

}  // namespace
}  // namespace anabatic::device
