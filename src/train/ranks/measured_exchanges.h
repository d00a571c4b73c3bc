// SPDX-License-Identifier: Apache-2.0
// Which method was faster for exchanges of which size, as `anabatic bench exchange` measured it
// between ranks on this machine. It is kept in a file of the user's cache.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/json_node.h"
#include "comm/exchange.h"

namespace anabatic::train {

struct MeasuredExchange {
  comm::ExchangeKind kind{};
  std::int64_t num_ranks = 0;
  std::int64_t bytes = 0;  // of the whole tensor
  double ordered_seconds = 0, mpi_seconds = 0;
  bool operator==(const MeasuredExchange&) const = default;
};

// The one of the nearest size; null where a group of so many was not measured.
const MeasuredExchange* find_measured(const std::vector<MeasuredExchange>& measured,
                                      comm::ExchangeKind kind, std::int64_t num_ranks,
                                      std::int64_t bytes);

OrderedJson to_json(const std::vector<MeasuredExchange>& measured);
// InvalidArgument naming the member.
std::vector<MeasuredExchange> read_measured(const JsonNode& from);

// $XDG_CACHE_HOME/anabatic/exchanges-HASH.json, by CPU, its cores and MPI's library; empty when no
// cache is known.
std::filesystem::path exchanges_file();
// Never throws: without a file, or with one that is corrupt, nothing was measured.
std::vector<MeasuredExchange> stored_exchanges();
// In place of what was measured of the same kind, ranks and bytes. ResourceError when it cannot be
// written.
void store_exchanges(const std::vector<MeasuredExchange>& measured);

}  // namespace anabatic::train
