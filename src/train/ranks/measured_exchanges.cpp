// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/measured_exchanges.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "base/environment.h"
#include "base/error.h"
#include "base/text.h"
#include "comm/mpi_world.h"
#include "device/topology.h"
#include "train/calibration.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

using comm::ExchangeKind;

constexpr std::int64_t kMostMeasuredBytes = std::int64_t{1} << 20;
constexpr double kLeastSeconds = 1e-9, kMostSeconds = 1e6;
constexpr std::array kMeasuredKinds{ExchangeKind::kAllGather, ExchangeKind::kBroadcast,
                                    ExchangeKind::kSend,      ExchangeKind::kReduceScatter,
                                    ExchangeKind::kAllReduce, ExchangeKind::kExchangeRows};

ExchangeKind read_kind(const JsonNode& from) {
  const std::string name = from.as_string();
  for (const ExchangeKind kind : kMeasuredKinds)
    if (to_string(kind) == name) return kind;
  from.refuse("a kind of exchange");
}

// A launcher may leave a process fewer cores than it left the one that measured.
std::string machine() {
  return fmt::format("{} | {}",
                     machine_fingerprint(device::describe_cpu(
                         static_cast<int>(std::max(::sysconf(_SC_NPROCESSORS_ONLN), 1L)))),
                     comm::mpi_library());
}

bool is_of_same(const MeasuredExchange& a, const MeasuredExchange& b) {
  return a.kind == b.kind && a.num_ranks == b.num_ranks && a.bytes == b.bytes;
}

}  // namespace

const MeasuredExchange* find_measured(const std::vector<MeasuredExchange>& measured,
                                      comm::ExchangeKind kind, std::int64_t num_ranks,
                                      std::int64_t bytes) {
  const MeasuredExchange* nearest = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const MeasuredExchange& each : measured) {
    if (each.kind != kind || each.num_ranks != num_ranks) continue;
    const double distance = std::abs(std::log(
        static_cast<double>(each.bytes) / static_cast<double>(std::max<std::int64_t>(bytes, 1))));
    if (distance >= least) continue;
    least = distance;
    nearest = &each;
  }
  return nearest;
}

OrderedJson to_json(const std::vector<MeasuredExchange>& measured) {
  OrderedJson json = OrderedJson::array();
  for (const MeasuredExchange& each : measured)
    json.push_back({{"kind", to_string(each.kind)},
                    {"ranks", each.num_ranks},
                    {"bytes", each.bytes},
                    {"ordered_seconds", each.ordered_seconds},
                    {"mpi_seconds", each.mpi_seconds}});
  return json;
}

std::vector<MeasuredExchange> read_measured(const JsonNode& from) {
  std::vector<MeasuredExchange> measured;
  for (const JsonNode& each : from.items())
    measured.push_back(
        {.kind = read_kind(each.at("kind")),
         .num_ranks = each.at("ranks").as_integer(2),
         .bytes = each.at("bytes").as_integer(1),
         .ordered_seconds = each.at("ordered_seconds").as_number(kLeastSeconds, kMostSeconds),
         .mpi_seconds = each.at("mpi_seconds").as_number(kLeastSeconds, kMostSeconds)});
  return measured;
}

fs::path exchanges_file() {
  const std::string cache = environment::cache_directory();
  if (cache.empty()) return {};
  const std::string name = machine();
  return fs::path(cache) / "anabatic" /
         fmt::format("exchanges-{:016x}.json", XXH3_64bits(name.data(), name.size()));
}

std::vector<MeasuredExchange> stored_exchanges() {
  try {
    const fs::path file = exchanges_file();
    std::error_code error;
    if (file.empty() || !fs::exists(file, error)) return {};
    const Json json = try_parse_json(read_file(file, kMostMeasuredBytes));
    const JsonNode top(json, file.string());
    if (top.at("machine").as_string() != machine()) return {};
    return read_measured(top.at("measured"));
  } catch (const std::exception&) {
    return {};
  }
}

void store_exchanges(const std::vector<MeasuredExchange>& measured) {
  const fs::path file = exchanges_file();
  if (file.empty())
    throw ResourceError("[exchanges] expected XDG_CACHE_HOME or HOME to be set, got neither");
  std::vector<MeasuredExchange> all = stored_exchanges();
  std::erase_if(all, [&](const MeasuredExchange& old) {
    return std::ranges::any_of(measured,
                               [&](const MeasuredExchange& each) { return is_of_same(each, old); });
  });
  all.insert(all.end(), measured.begin(), measured.end());
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  if (error)
    throw ResourceError(fmt::format("[exchanges] cannot make the directory {}: {}",
                                    file.parent_path().string(), error.message()));
  write_file_atomically(
      file, dump_json(OrderedJson{{"machine", machine()}, {"measured", to_json(all)}}, 2) + "\n");
}

}  // namespace anabatic::train
