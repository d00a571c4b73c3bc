// SPDX-License-Identifier: Apache-2.0
#include "spec/cluster_file.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "base/json_node.h"
#include "base/text.h"

namespace anabatic::spec {
namespace {

constexpr double kMost = 1e12;  // of any number

void check_names(const JsonNode& object, std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : object.members())
    ANABATIC_REQUIRE(std::ranges::find(known, name) != known.end(), "{}: unknown key",
                     object.place_of(name));
}

ClusterLevel read_level(const JsonNode& node, std::int32_t below) {
  check_names(node, {"name", "ranks", "latency_us", "gb_per_s"});
  const JsonNode ranks = node.at("ranks");
  ClusterLevel level{.name = node.at("name").as_string(),
                     .num_ranks = static_cast<std::int32_t>(ranks.as_integer(1, 1 << 30))};
  if (level.num_ranks % below != 0)
    ranks.refuse(fmt::format("a multiple of {}, the ranks of the level before", below));
  level.link.latency_seconds = 1e-6 * node.at("latency_us").as_number(0, kMost);
  if (const auto rate = node.find("gb_per_s"))
    level.link.bytes_per_second = 1e9 * rate->as_number(0, kMost);
  return level;
}

}  // namespace

ClusterSpec read_cluster(const std::filesystem::path& file) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 20;
  const std::string place = "[cluster] " + file.string();
  const Json json = parse_json_object(read_file(file, kMostBytes), place);
  const JsonNode root(json, place);
  check_names(root, {"levels"});
  ClusterSpec cluster;
  for (const JsonNode& level : root.at("levels").items())
    cluster.levels.push_back(read_level(level, std::max(cluster.num_ranks(), 1)));
  if (cluster.levels.empty()) root.at("levels").refuse("at least one level");
  return cluster;
}

}  // namespace anabatic::spec
