// SPDX-License-Identifier: Apache-2.0
#include "comm/exchange.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace anabatic::comm {
std::int64_t total_of(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

std::string_view to_string(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::kAllGather:
      return "all_gather";
    case ExchangeKind::kBroadcast:
      return "broadcast";
    case ExchangeKind::kSend:
      return "send";
    case ExchangeKind::kReduceScatter:
      return "reduce_scatter";
    case ExchangeKind::kAllReduce:
      return "all_reduce";
    case ExchangeKind::kExchangeRows:
      return "exchange_rows";
  }
  ANABATIC_CHECK(false, "[exchange] unknown code {} of a kind", static_cast<int>(kind));
}

bool adds(ExchangeKind kind) {
  return kind == ExchangeKind::kReduceScatter || kind == ExchangeKind::kAllReduce;
}

std::int64_t sent_bytes(const Exchange& exchange, std::size_t member) {
  const std::int64_t own = exchange.counts[member], of_others = total_of(exchange.counts) - own;
  const std::int64_t to_others = std::ssize(exchange.group) - 1;
  switch (exchange.kind) {
    case ExchangeKind::kAllGather:
    case ExchangeKind::kBroadcast:
    case ExchangeKind::kSend:
      return exchange.row_bytes * to_others * own;
    case ExchangeKind::kExchangeRows:
      return exchange.row_bytes * (total_of(exchange.send_counts) - exchange.send_counts[member]);
    case ExchangeKind::kReduceScatter:
      return exchange.row_bytes * of_others;
    case ExchangeKind::kAllReduce:  // terms, and sums
      return exchange.row_bytes * (of_others + to_others * own);
  }
  ANABATIC_CHECK(false, "[exchange] unknown code {} of a kind", static_cast<int>(exchange.kind));
}

std::int64_t received_bytes(const Exchange& exchange, std::size_t member) {
  const std::int64_t own = exchange.counts[member], of_others = total_of(exchange.counts) - own;
  const std::int64_t from_others = std::ssize(exchange.group) - 1;
  switch (exchange.kind) {
    case ExchangeKind::kAllGather:
    case ExchangeKind::kBroadcast:
    case ExchangeKind::kSend:
    case ExchangeKind::kExchangeRows:
      return exchange.row_bytes * of_others;
    case ExchangeKind::kReduceScatter:
      return exchange.row_bytes * from_others * own;
    case ExchangeKind::kAllReduce:
      return exchange.row_bytes * (from_others * own + of_others);
  }
  ANABATIC_CHECK(false, "[exchange] unknown code {} of a kind", static_cast<int>(exchange.kind));
}

std::vector<std::int64_t> even_counts(std::int64_t rows, std::int64_t num_members) {
  std::vector<std::int64_t> counts;
  for (std::int64_t i = 0; i < num_members; ++i)
    counts.push_back(rows * (i + 1) / num_members - rows * i / num_members);
  return counts;
}

void check(const Exchange& exchange, std::int32_t rank) {
  const std::string_view kind = to_string(exchange.kind);
  const auto num_members = exchange.group.size();
  const bool is_sum = adds(exchange.kind);
  ANABATIC_CHECK(std::count(exchange.group.begin(), exchange.group.end(), rank) <= 1,
                 "[exchange] {} {}: rank {} is twice in the group", kind, exchange.label, rank);
  ANABATIC_CHECK(exchange.counts.size() == num_members,
                 "[exchange] {} {}: {} counts for a group of {}", kind, exchange.label,
                 exchange.counts.size(), num_members);
  ANABATIC_CHECK(exchange.send_counts.size() ==
                     (exchange.kind == ExchangeKind::kExchangeRows ? num_members : 0),
                 "[exchange] {} {}: {} counts to send for a group of {}", kind, exchange.label,
                 exchange.send_counts.size(), num_members);
  ANABATIC_CHECK(exchange.kind != ExchangeKind::kSend || num_members == 2,
                 "[exchange] send {}: a group of {}", exchange.label, num_members);
  const auto is_negative = [](std::int64_t count) { return count < 0; };
  ANABATIC_CHECK(
      std::none_of(exchange.counts.begin(), exchange.counts.end(), is_negative) &&
          std::none_of(exchange.send_counts.begin(), exchange.send_counts.end(), is_negative),
      "[exchange] {} {}: a negative count", kind, exchange.label);
  ANABATIC_CHECK(exchange.row_bytes > 0, "[exchange] {} {}: rows of {} bytes", kind, exchange.label,
                 exchange.row_bytes);
  ANABATIC_CHECK(
      !is_sum || ((exchange.dtype == DType::kFloat32 || exchange.dtype == DType::kFloat64 ||
                   exchange.dtype == DType::kBFloat16) &&
                  exchange.row_bytes % size_bytes(exchange.dtype) == 0),
      "[exchange] {} {}: a sum of {} in rows of {} bytes", kind, exchange.label,
      to_string(exchange.dtype), exchange.row_bytes);
}

}  // namespace anabatic::comm
