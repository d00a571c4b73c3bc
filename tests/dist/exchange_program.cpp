// SPDX-License-Identifier: Apache-2.0
#include "dist/exchange_program.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/philox.h"
#include "comm/methods.h"

namespace anabatic::testing {
namespace {

using comm::ExchangeKind;

constexpr std::size_t kGuard = 64;
constexpr std::byte kGuardByte{0x5A};

bool is_gather(ExchangeKind kind) {
  return kind == ExchangeKind::kAllGather || kind == ExchangeKind::kBroadcast ||
         kind == ExchangeKind::kSend;
}

// Element `at` of a member's input: an integer that sums of eight such hold exactly, in bf16 too.
float value(const ExchangeCase& exchange, std::size_t member, std::int64_t at) {
  std::uint64_t bits = exchange.seed + member * 0x9E3779B97F4A7C15u +
                       static_cast<std::uint64_t>(at) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ (bits >> 31)) * 0x94D049BB133111EBu;
  return static_cast<float>(static_cast<std::int32_t>(bits >> 32 & 0xF) - 8);
}

void put(std::vector<std::byte>& to, float value, DType dtype) {
  if (dtype == DType::kBFloat16) {
    const BFloat16 half = to_bfloat16(value);
    to.insert(to.end(), reinterpret_cast<const std::byte*>(&half),
              reinterpret_cast<const std::byte*>(&half) + sizeof half);
  } else {
    to.insert(to.end(), reinterpret_cast<const std::byte*>(&value),
              reinterpret_cast<const std::byte*>(&value) + sizeof value);
  }
}

std::int64_t sum(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

std::vector<std::int64_t> sent_by(const ExchangeCase& exchange, std::size_t member) {
  std::vector<std::int64_t> counts;
  for (const auto& from : exchange.to_from) counts.push_back(from[member]);
  return counts;
}

// Where a row to send is in its sender's input.
constexpr std::int32_t kIndexDivisor = 3;

std::int64_t input_row(const ExchangeCase& exchange, std::int64_t place, std::int64_t num_rows) {
  return exchange.by_index ? (place * 7 + 3) % num_rows : place;
}

std::int64_t input_rows(const ExchangeCase& exchange, std::size_t member) {
  if (is_gather(exchange.kind)) return exchange.counts[member];
  if (exchange.kind == ExchangeKind::kExchangeRows) return sum(sent_by(exchange, member));
  return sum(exchange.counts);
}

std::vector<std::byte> expected_output(const ExchangeCase& exchange, std::size_t me) {
  std::vector<std::byte> result;
  const std::int64_t width = exchange.row_elements;
  const auto put_row = [&](std::size_t member, std::int64_t row) {
    for (std::int64_t i = 0; i < width; ++i)
      put(result, value(exchange, member, row * width + i), exchange.dtype);
  };
  const auto put_sums = [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t i = first * width; i < end * width; ++i) {
      float total = 0;
      for (std::size_t member = 0; member < exchange.group.size(); ++member)
        total += value(exchange, member, i);
      put(result, total, exchange.dtype);
    }
  };
  switch (exchange.kind) {
    case ExchangeKind::kAllGather:
    case ExchangeKind::kBroadcast:
    case ExchangeKind::kSend:
      for (std::size_t member = 0; member < exchange.group.size(); ++member)
        for (std::int64_t row = 0; row < exchange.counts[member]; ++row) put_row(member, row);
      break;
    case ExchangeKind::kExchangeRows:
      for (std::size_t member = 0; member < exchange.group.size(); ++member) {
        const std::vector<std::int64_t> sent = sent_by(exchange, member);
        const std::int64_t first = sum(std::span(sent).first(me));
        for (std::int64_t row = 0; row < sent[me]; ++row)
          put_row(member, input_row(exchange, first + row, sum(sent)));
      }
      break;
    case ExchangeKind::kReduceScatter: {
      const std::int64_t first = sum(std::span(exchange.counts).first(me));
      put_sums(first, first + exchange.counts[me]);
      break;
    }
    case ExchangeKind::kAllReduce:
      put_sums(0, sum(exchange.counts));
      break;
  }
  return result;
}

std::vector<std::byte> guarded(const std::vector<std::byte>& bytes) {
  std::vector<std::byte> result(kGuard, kGuardByte);
  result.insert(result.end(), bytes.begin(), bytes.end());
  result.insert(result.end(), kGuard, kGuardByte);
  return result;
}

}  // namespace

std::string describe(const ExchangeCase& exchange) {
  return fmt::format("{} by {} in [{}], counts [{}]{}, {} x {}{}{}", to_string(exchange.kind),
                     to_string(exchange.method), fmt::join(exchange.group, ","),
                     fmt::join(exchange.counts, ","), exchange.to_from.empty() ? "" : " ragged",
                     exchange.row_elements, to_string(exchange.dtype),
                     exchange.in_place ? ", in place" : "", exchange.by_index ? ", by index" : "");
}

ExchangeCase by(comm::Method method, const ExchangeCase& exchange,
                const comm::Communicator& communicator) {
  ExchangeCase result = exchange;
  const std::string refusal =
      comm::row_of(method).refusal({.kind = exchange.kind,
                                    .group_size = std::ssize(exchange.group),
                                    .dtype = exchange.dtype,
                                    .num_elements = exchange.row_elements * sum(exchange.counts),
                                    .by_index = exchange.by_index});
  if (refusal.empty() && communicator.has_collectives(exchange.group)) result.method = method;
  return result;
}

ExchangeCase random_case(std::uint64_t seed, std::uint64_t index, std::int32_t num_ranks,
                         std::int64_t max_rows) {
  std::uint64_t draw = 0;
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(
        random_below(seed, index, draw++, static_cast<std::uint64_t>(bound)));
  };
  // Every third count is zero.
  const auto count = [&] { return below(3) == 0 ? 0 : below(max_rows + 1); };
  ExchangeCase result;
  result.kind = static_cast<ExchangeKind>(below(6));
  for (std::int32_t rank = 0; rank < num_ranks; ++rank)
    if (below(4) != 0) result.group.push_back(rank);
  if (result.group.empty()) result.group.push_back(0);
  if (result.kind == ExchangeKind::kSend && result.group.size() < 2)
    result.kind = ExchangeKind::kBroadcast;
  if (result.kind == ExchangeKind::kSend) result.group.resize(2);
  if (below(2) == 0) std::reverse(result.group.begin(), result.group.end());
  const std::size_t n = result.group.size();
  for (std::size_t i = 0; i < n; ++i) result.counts.push_back(count());
  if (result.kind == ExchangeKind::kBroadcast || result.kind == ExchangeKind::kSend)
    for (std::size_t i = 1; i < n; ++i) result.counts[i] = 0;
  if (result.kind == ExchangeKind::kExchangeRows) {
    result.to_from.assign(n, std::vector<std::int64_t>(n));
    for (auto& from : result.to_from)
      for (std::int64_t& each : from) each = count();
    if (below(2) == 0) std::fill(result.to_from[0].begin(), result.to_from[0].end(), 0);
    result.by_index = below(2) == 0;
    result.counts.clear();
  }
  result.row_elements = 1 + below(9);
  result.dtype = below(2) == 0 ? DType::kFloat32 : DType::kBFloat16;
  result.in_place = result.kind != ExchangeKind::kExchangeRows && below(2) == 0;
  result.seed = random_bits(seed, index, 1000);
  return result;
}

RankExchange::RankExchange(const ExchangeCase& exchange, std::int32_t rank)
    : group_(exchange.group),
      workspace_(comm::workspace_bytes(std::ssize(exchange.group), exchange.method)),
      name_(describe(exchange)) {
  exchange_ = {.kind = exchange.kind,
               .method = exchange.method,
               .group = group_,
               .row_bytes = exchange.row_elements * size_bytes(exchange.dtype),
               .dtype = exchange.dtype,
               .label = name_};
  const auto found = std::find(exchange.group.begin(), exchange.group.end(), rank);
  const auto me = static_cast<std::size_t>(found - exchange.group.begin());
  const bool is_member = found != exchange.group.end();
  counts_ = exchange.counts;
  if (exchange.kind == ExchangeKind::kExchangeRows) {
    counts_.assign(exchange.group.size(), 0);
    send_counts_ = counts_;
  }
  if (is_member) {
    if (exchange.kind == ExchangeKind::kExchangeRows) {
      counts_ = exchange.to_from[me];
      send_counts_ = sent_by(exchange, me);
    }
    std::vector<std::byte> input;
    const std::int64_t rows = input_rows(exchange, me);
    for (std::int64_t i = 0; i < rows * exchange.row_elements; ++i)
      put(input, value(exchange, me, i), exchange.dtype);
    if (exchange.by_index)
      for (std::int64_t i = 0; i < rows; ++i)
        row_index_.push_back(static_cast<std::int32_t>(
            kIndexDivisor * input_row(exchange, i, rows) + i % kIndexDivisor));
    expected_ = expected_output(exchange, me);
    std::vector<std::byte> output(expected_.size(), std::byte{0xFF});
    const auto mine = static_cast<std::size_t>(
        is_gather(exchange.kind) || exchange.kind == ExchangeKind::kReduceScatter
            ? sum(std::span(exchange.counts).first(me)) * exchange_.row_bytes
            : 0);
    in_place_ = exchange.in_place && exchange.kind == ExchangeKind::kReduceScatter;
    std::size_t input_first = kGuard;
    output_first_ = in_place_ ? kGuard + mine : kGuard;
    if (exchange.in_place && is_gather(exchange.kind)) {
      std::copy(input.begin(), input.end(), output.begin() + static_cast<std::ptrdiff_t>(mine));
      input_first += mine;
    }
    if (exchange.in_place && exchange.kind == ExchangeKind::kAllReduce) output = input;
    input_ = guarded(input);
    output_ = guarded(output);
    std::vector<std::byte>& to = in_place_ ? input_ : output_;
    exchange_.output = to.data() + output_first_;
    exchange_.input =
        exchange.in_place && !in_place_ ? output_.data() + input_first : input_.data() + kGuard;
    if (exchange.by_index) {
      exchange_.row_index = row_index_.data();
      exchange_.index_divisor = kIndexDivisor;
    }
  }
  exchange_.counts = counts_;
  exchange_.send_counts = send_counts_;
}

std::vector<std::byte> RankExchange::output() const {
  const std::vector<std::byte>& of = in_place_ ? input_ : output_;
  if (of.empty()) return {};
  const auto first = of.begin() + static_cast<std::ptrdiff_t>(output_first_);
  return {first, first + static_cast<std::ptrdiff_t>(expected_.size())};
}

std::string RankExchange::difference() const {
  if (output() != expected_) return name_ + ": the output differs";
  for (const auto& buffer : {input_, output_})
    for (std::size_t i = 0; !buffer.empty() && i < kGuard; ++i)
      if (buffer[i] != kGuardByte || buffer[buffer.size() - 1 - i] != kGuardByte)
        return name_ + ": written beyond a buffer";
  return {};
}

}  // namespace anabatic::testing
