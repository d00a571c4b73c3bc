// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "anabatic/error.h"
#include "spec/cluster_file.h"

namespace anabatic::spec {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Cluster, RanksUseTheLinkOfTheLowestLevelThatTheyShare) {
  const ClusterSpec cluster{{{"node", 2, {1, 10}}, {"rack", 6, {2, 20}}, {"cluster", 12, {3, 30}}}};
  EXPECT_EQ(cluster.num_ranks(), 12);
  for (std::int32_t from = 0; from < 12; ++from)
    for (std::int32_t to = 0; to < 12; ++to) {
      const double level = from / 2 == to / 2 ? 1 : from / 6 == to / 6 ? 2 : 3;
      EXPECT_EQ(link_between(cluster, from, to).latency_seconds, level) << from << " " << to;
      EXPECT_EQ(link_between(cluster, from, to).bytes_per_second, 10 * level);
    }
}

TEST(Cluster, WithTooFewDevicesIsRefused) {
  EXPECT_THAT(
      [] {
        (void)link_between({{{"node", 2, {}}}}, 0, 2);
      },
      ThrowsMessage<InvalidArgument>(
          HasSubstr("expected devices for ranks 0 and 2, got 2 devices")));
  EXPECT_THAT(
      [] {
        (void)link_between({{{"node", 2, {}}, {"rack", 5, {}}}}, 0, 1);
      },
      ThrowsMessage<InvalidArgument>(
          HasSubstr("level rack: expected a multiple of 2 ranks, got 5")));
}

ClusterSpec read_text(const std::string& text) {
  const std::filesystem::path file =
      std::filesystem::path(::testing::TempDir()) / (std::to_string(::getpid()) + ".cluster.json");
  std::ofstream(file) << text;
  const auto remove = [](const std::filesystem::path* path) { std::filesystem::remove(*path); };
  const std::unique_ptr<const std::filesystem::path, decltype(remove)> removed(&file, remove);
  return read_cluster(file);
}

TEST(ClusterFile, HasALinkForEachLevel) {
  const ClusterSpec cluster = read_text(
      R"({"levels": [{"name": "node", "ranks": 4, "latency_us": 1.5, "gb_per_s": 20},
                     {"name": "rack", "ranks": 8, "latency_us": 10}]})");
  EXPECT_EQ(cluster.num_ranks(), 8);
  EXPECT_EQ(link_between(cluster, 0, 3).latency_seconds, 1.5e-6);
  EXPECT_EQ(link_between(cluster, 0, 3).bytes_per_second, 20e9);
  EXPECT_EQ(link_between(cluster, 3, 4).bytes_per_second, 0);
}

TEST(ClusterFile, NamesThePlaceOfAFault) {
  const auto expect = [](const std::string& levels, const std::string& message) {
    EXPECT_THAT([&] { read_text("{\"levels\": " + levels + "}"); },
                ThrowsMessage<InvalidArgument>(HasSubstr("cluster.json: " + message)));
  };
  expect("[]", "levels: expected at least one level");
  expect("3", "levels: expected a list");
  expect(R"([{"name": "node", "latency_us": 1}])", "levels[0]: expected a field `ranks`");
  expect(R"([{"name": "node", "ranks": 0, "latency_us": 1}])", "levels[0].ranks: expected");
  expect(R"([{"name": "node", "ranks": 2, "latency_us": -1}])", "levels[0].latency_us: expected");
  expect(R"([{"name": "node", "ranks": 2, "latency_us": 1, "gbps": 1}])",
         "levels[0].gbps: unknown key");
  expect(
      R"([{"name": "a", "ranks": 2, "latency_us": 1}, {"name": "b", "ranks": 3, "latency_us": 1}])",
      "levels[1].ranks: expected a multiple of 2");
  EXPECT_THROW(read_text("[1]"), InvalidArgument);
  EXPECT_THROW(read_cluster("/no/such/file.json"), ResourceError);
}

}  // namespace
}  // namespace anabatic::spec
