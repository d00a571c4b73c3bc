// SPDX-License-Identifier: Apache-2.0
#include "runtime/exchange_driver.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "base/error.h"
#include "base/rounding.h"
#include "spec/execution.h"
#include "spec/shards.h"

namespace anabatic::runtime {
namespace {

// Stored elements of each member's part.
std::vector<std::int64_t> elements_of(const TensorType& type, std::int64_t num_members) {
  std::vector<std::int64_t> counts;
  for (std::int64_t member = 0; member < num_members; ++member) {
    const spec::ElementRange range = spec::shard_elements(type, num_members, member);
    counts.push_back(range.end - range.begin);
  }
  return counts;
}

// Whole cache lines where all parts consist of them.
std::int64_t row_bytes_of(const std::vector<std::int64_t>& elements, std::int64_t element_bytes) {
  const bool is_whole = std::ranges::all_of(elements, [&](std::int64_t count) {
    return count * element_bytes % spec::kAlignmentBytes == 0;
  });
  return is_whole ? spec::kAlignmentBytes : element_bytes;
}

}  // namespace

ExchangeDriver::ExchangeDriver(const Program& program, const RankContext& rank,
                               const std::function<TensorView(const Operand&)>& resolve)
    : communicator_(rank.communicator) {
  if (program.exchanges.empty()) return;
  ANABATIC_REQUIRE(communicator_ != nullptr && communicator_->size() == rank.mesh.world(),
                   "[exchanges] expected {} ranks, for {}; got {}", rank.mesh.world(),
                   spec::to_string(rank.mesh),
                   communicator_ == nullptr ? 1 : communicator_->size());
  exchanges_.reserve(program.exchanges.size());  // spans point into the elements
  std::int64_t workspace_bytes = 0;
  for (const Exchange& exchange : program.exchanges) {
    Bound& bound = exchanges_.emplace_back();
    bound.group = spec::group_of(rank.mesh, exchange.group, communicator_->rank());
    bound.exchange = {.kind = exchange.kind,
                      .method = exchange.method,
                      .group = bound.group,
                      .label = exchange.label};
    if (exchange.rows)
      bind_rows(exchange, resolve, bound);
    else
      bind_in_place(exchange, communicator_->rank(), resolve, bound);
    bound.exchange.counts = bound.counts;
    bound.exchange.send_counts = bound.send_counts;
    bound.workspace_offset = workspace_bytes;
    bound.workspace_bytes = round_up(
        comm::workspace_bytes(std::ssize(bound.group), exchange.method), spec::kAlignmentBytes);
    workspace_bytes += bound.workspace_bytes;
  }
  workspace_ = device::Memory(workspace_bytes);
}

void ExchangeDriver::bind_in_place(const Exchange& exchange, std::int32_t rank,
                                   const Resolve& resolve, Bound& bound) {
  const TensorView buffer = resolve(exchange.buffer);
  const auto own = std::ranges::find(bound.group, rank) - bound.group.begin();
  bound.counts = elements_of(*buffer.type, std::ssize(bound.group));
  const std::int64_t row_bytes = row_bytes_of(bound.counts, size_bytes(buffer.type->dtype));
  for (std::int64_t& count : bound.counts)
    count = count * size_bytes(buffer.type->dtype) / row_bytes;
  std::byte* const part =
      buffer.data + row_bytes * std::accumulate(bound.counts.begin(), bound.counts.begin() + own,
                                                std::int64_t{0});
  using enum comm::ExchangeKind;
  bound.exchange.row_bytes = row_bytes;
  bound.exchange.dtype = buffer.type->dtype;
  bound.exchange.input = exchange.kind == kAllGather ? part : buffer.data;
  bound.exchange.output = exchange.kind == kReduceScatter ? part : buffer.data;
}

void ExchangeDriver::bind_rows(const Exchange& exchange, const Resolve& resolve, Bound& bound) {
  const RowOperands& rows = *exchange.rows;
  const TensorView input = resolve(rows.input), output = resolve(exchange.buffer);
  bound.rows = {.send = resolve(rows.send_counts).as<const std::int32_t>(),
                .receive = resolve(rows.receive_counts).as<const std::int32_t>(),
                .most_sent = input.type->dim(0),
                .most_received = output.type->dim(0)};
  bound.exchange.row_bytes = input.type->dim(-1) * size_bytes(input.type->dtype);
  bound.exchange.input = input.data;
  bound.exchange.output = output.data;
  if (rows.row_map) {
    const TensorView map = resolve(*rows.row_map);
    bound.rows.most_sent = map.type->dim(0);
    bound.exchange.row_index = map.as<const std::int32_t>();
    bound.exchange.index_divisor = static_cast<std::int32_t>(rows.top_k);
  }
  bound.counts.resize(bound.group.size());
  bound.send_counts.resize(bound.group.size());
}

void ExchangeDriver::read_counts(Bound& bound) {
  const BoundRows& rows = bound.rows;
  if (rows.send == nullptr) return;
  std::copy_n(rows.send, bound.send_counts.size(), bound.send_counts.begin());
  std::copy_n(rows.receive, bound.counts.size(), bound.counts.begin());
  const auto sum = [](const std::vector<std::int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  };
  ANABATIC_CHECK(
      sum(bound.send_counts) <= rows.most_sent && sum(bound.counts) <= rows.most_received,
      "[exchanges] {}: {} of at most {} rows to send, {} of {} to receive", bound.exchange.label,
      sum(bound.send_counts), rows.most_sent, sum(bound.counts), rows.most_received);
}

ExchangeDriver::~ExchangeDriver() {
  if (std::ranges::any_of(exchanges_, &Bound::is_under_way))
    communicator_->abort("rank ended while an exchange was under way");
}

std::vector<comm::CommStats> ExchangeDriver::took() const {
  std::vector<comm::CommStats> result;
  for (const Bound& bound : exchanges_) result.push_back(bound.took);
  return result;
}

void ExchangeDriver::await(Bound& bound) {
  bound.took += communicator_->await(bound.number);
  bound.is_under_way = false;
}

void ExchangeDriver::begin(Action action, const Variant& variant) {
  if (action == Action::kForward)
    for (Bound& bound : exchanges_)
      if (bound.is_under_way) await(bound);
  next_ = variant.exchange_points.data();
  end_ = next_ + variant.exchange_points.size();
}

void ExchangeDriver::move(std::size_t call) {
  for (; next_ != end_ && static_cast<std::size_t>(next_->call) <= call; ++next_) {
    Bound& bound = exchanges_[static_cast<std::size_t>(next_->exchange)];
    if (next_->step == ExchangeStep::kAwait) {
      await(bound);
      continue;
    }
    read_counts(bound);
    bound.is_under_way = true;
    bound.number = communicator_->post(bound.exchange,
                                       std::span(workspace_.data() + bound.workspace_offset,
                                                 static_cast<std::size_t>(bound.workspace_bytes)));
  }
}

}  // namespace anabatic::runtime
