// SPDX-License-Identifier: Apache-2.0
// What memory a process may use, from files as Linux writes them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "device/memory.h"

namespace anabatic::device {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

class MemoryLimits : public ::testing::Test {
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
  std::int64_t available() const {
    return available_bytes({.proc = root_ / "proc", .cgroup = root_ / "cgroup"});
  }

  fs::path root_;
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

}  // namespace
}  // namespace anabatic::device
