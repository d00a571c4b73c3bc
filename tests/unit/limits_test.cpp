// SPDX-License-Identifier: Apache-2.0
// What memory and CPU time a process may use, from files as Linux writes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

#include "device/cpu_limits.h"
#include "device/memory.h"
#include "device/physical_cores.h"
#include "device/thread_team.h"
#include "support/scoped_variable.h"

namespace anabatic::device {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

class Limits : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() /
            ("anabatic-limits-" + std::to_string(getpid()) + "-" +
             ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    write("proc/meminfo", "MemTotal:       33554432 kB\nMemAvailable:   16777216 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  SystemRoots roots() const { return {.proc = root_ / "proc", .cgroup = root_ / "cgroup"}; }

  fs::path root_;
};

class MemoryLimits : public Limits {
 protected:
  std::int64_t available() const { return available_bytes(roots()); }
};

// Quotas are parts of one core, which any machine that runs this has.
class CpuQuota : public Limits {
 protected:
  std::optional<double> quota() const { return cpu_limits(roots()).quota; }
};

TEST_F(MemoryLimits, AreWhatTheMachineHasFreeWithoutAGroup) { EXPECT_EQ(available(), 16 * kGiB); }

TEST_F(MemoryLimits, FollowVersionTwoUpToTheTightestGroup) {
  write("proc/self/cgroup", "0::/user/job\n");
  write("cgroup/user/job/memory.max", "max\n");
  EXPECT_EQ(available(), 16 * kGiB);
  write("cgroup/user/memory.max", std::to_string(6 * kGiB) + "\n");
  write("cgroup/user/memory.current", std::to_string(2 * kGiB) + "\n");
  EXPECT_EQ(available(), 4 * kGiB);
  // File cache that the group can drop does not count as used.
  write("cgroup/user/memory.stat",
        "anon 5\ninactive_file " + std::to_string(kGiB) + "\nactive_file 7\n");
  EXPECT_EQ(available(), 5 * kGiB);
  write("cgroup/user/job/memory.max", std::to_string(3 * kGiB) + "\n");
  EXPECT_EQ(available(), 3 * kGiB);
}

TEST_F(MemoryLimits, FollowVersionOne) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a/b\n");
  write("cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(available(), 16 * kGiB);
  write("cgroup/memory/a/memory.limit_in_bytes", std::to_string(8 * kGiB));
  write("cgroup/memory/a/memory.usage_in_bytes", std::to_string(3 * kGiB));
  write("cgroup/memory/a/memory.stat", "total_inactive_file " + std::to_string(kGiB) + "\n");
  EXPECT_EQ(available(), 6 * kGiB);
}

// In a container the group's own folder is the root of what is mounted.
TEST_F(MemoryLimits, LookAtTheMountWhereTheGroupIsNotThere) {
  write("proc/self/cgroup", "0::/../../elsewhere\n");
  write("cgroup/memory.max", std::to_string(2 * kGiB));
  EXPECT_EQ(available(), 2 * kGiB);
}

TEST_F(MemoryLimits, AreNeverNegative) {
  write("proc/self/cgroup", "0::/\n");
  write("cgroup/memory.max", std::to_string(kGiB));
  write("cgroup/memory.current", std::to_string(2 * kGiB));
  EXPECT_EQ(available(), 0);
}

TEST_F(MemoryLimits, AreNoneWhereTheSystemSaysNothing) {
  fs::remove_all(root_);
  EXPECT_EQ(available(), std::numeric_limits<std::int64_t>::max());
  write("proc/self/cgroup", "garbage\n:\n::\n0::/x\n");
  write("cgroup/x/memory.max", "lots\n");
  EXPECT_EQ(available(), std::numeric_limits<std::int64_t>::max());
}

TEST_F(CpuQuota, IsNoneWithoutAGroupOrALimit) {
  EXPECT_EQ(quota(), std::nullopt);
  write("proc/self/cgroup", "0::/job\n");
  write("cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), std::nullopt);
  write("cgroup/job/cpu.max", "garbage\n");
  EXPECT_EQ(quota(), std::nullopt);
  write("cgroup/job/cpu.max", "200000000 100000\n");  // more than the mask's cores
  EXPECT_EQ(quota(), std::nullopt);
}

TEST_F(CpuQuota, FollowsVersionTwoUpToTheTightestGroup) {
  write("proc/self/cgroup", "0::/user/job\n");
  write("cgroup/user/job/cpu.max", "75000 100000\n");
  EXPECT_EQ(quota(), 0.75);
  write("cgroup/user/cpu.max", "50000 200000\n");
  EXPECT_EQ(quota(), 0.25);
  write("cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota(), 0.25);
}

TEST_F(CpuQuota, FollowsVersionOne) {
  write("proc/self/cgroup", "7:memory:/m\n5:cpu,cpuacct:/a/b\n0::/\n");
  write("cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n");
  write("cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), std::nullopt);
  write("cgroup/cpu/a/cpu.cfs_quota_us", "50000\n");
  write("cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 0.5);
  write("cgroup/cpu,cpuacct/cpu.cfs_quota_us", "25000\n");
  write("cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 0.25);
}

TEST_F(CpuQuota, IsThatOfTheMountWhereTheGroupIsNotThere) {
  write("proc/self/cgroup", "0::/../../elsewhere\n");
  write("cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota(), 0.5);
}

TEST_F(CpuQuota, GivesATeamOneThread) {
  write("proc/self/cgroup", "0::/job\n");
  write("cgroup/job/cpu.max", "50000 100000\n");
  const ThreadTeam team(0, cpu_limits(roots()));
  EXPECT_EQ(team.num_threads(), 1);
  EXPECT_FALSE(team.spins());
}

TEST(CpuLimits, GiveAThreadToEachWholeCoreAndLetThoseSpin) {
  struct Case {
    std::optional<double> quota;
    int threads;  // of a team that is not told
    bool two_spin, three_spin;
  };
  for (const auto& [quota, threads, two_spin, three_spin] :
       {Case{std::nullopt, 4, true, true}, Case{3.0, 3, true, true}, Case{2.0, 2, true, false},
        Case{2.5, 2, false, false}, Case{1.0, 1, false, false}, Case{0.25, 1, false, false}}) {
    const CpuLimits limits{.cores = {0, 1, 2, 3}, .quota = quota};
    SCOPED_TRACE(to_string(limits));
    EXPECT_EQ(limits.num_threads(), threads);
    EXPECT_EQ(limits.may_spin(2), two_spin);
    EXPECT_EQ(limits.may_spin(3), three_spin);
    EXPECT_FALSE(limits.may_spin(5));
    const ThreadTeam team(2, limits);  // a count that is asked for is taken
    EXPECT_EQ(team.num_threads(), 2);
    EXPECT_EQ(team.spins(), two_spin);
  }
  EXPECT_EQ(to_string(CpuLimits{.cores = {0, 1}, .quota = 1.5}),
            "2 by the affinity mask, 1.5 by the CPU quota of a cgroup");
}

TEST(CpuLimits, LetNoThreadSpinWhereThePolicyIsPassive) {
  for (const auto& [policy, is_passive] :
       {std::pair{"PASSIVE", true}, {"passive", true}, {"ACTIVE", false}, {"", false}}) {
    const anabatic::testing::ScopedVariable variable("OMP_WAIT_POLICY", policy);
    EXPECT_EQ(cpu_limits().waits_passively, is_passive) << policy;
    const CpuLimits limits{
        .cores = {0, 1}, .quota = std::nullopt, .waits_passively = cpu_limits().waits_passively};
    EXPECT_EQ(ThreadTeam(2, limits).spins(), !is_passive) << policy;
  }
}

TEST(PhysicalCores, ComeBeforeTheirSiblings) {
  const auto found = physical_cores({0, 1, 2, 3, 4, 5, 6, 7}, "core:4 pu:2");
  EXPECT_THAT(found.hardware_threads, ElementsAre(0, 2, 4, 6, 1, 3, 5, 7));
  EXPECT_EQ(found.num_siblings, 4);
}

TEST(PhysicalCores, AreThoseOfTheMask) {
  const auto found = physical_cores({1, 2, 3, 7}, "core:4 pu:2");
  EXPECT_THAT(found.hardware_threads, ElementsAre(1, 2, 7, 3));
  EXPECT_EQ(found.num_siblings, 1);
}

TEST(PhysicalCores, AreAllWhereNoneIsShared) {
  const auto found = physical_cores({0, 1, 2, 9}, "core:4 pu:1");  // 9: of no machine that it knows
  EXPECT_THAT(found.hardware_threads, ElementsAre(0, 1, 2, 9));
  EXPECT_EQ(found.num_siblings, 0);
}

TEST(CpuLimits, GiveOneThreadToAPhysicalCore) {
  const CpuLimits limits{.cores = {0, 2, 1, 3}, .quota = std::nullopt, .num_siblings = 2};
  EXPECT_EQ(limits.num_threads(), 2);
  EXPECT_TRUE(limits.may_spin(2));
  EXPECT_FALSE(limits.may_spin(3));
  EXPECT_EQ(to_string(limits), "2 by the affinity mask (4 hardware threads)");
}

}  // namespace
}  // namespace anabatic::device
