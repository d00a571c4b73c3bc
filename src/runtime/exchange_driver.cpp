// SPDX-License-Identifier: Apache-2.0
#include "runtime/exchange_driver.h"

#include <algorithm>
#include <span>

#include "base/error.h"
#include "base/rounding.h"

namespace anabatic::runtime {
namespace {

constexpr std::int64_t kAlignmentBytes = 64;

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
    const TensorView buffer = resolve(exchange.buffer);
    const std::int64_t bytes = buffer.type->num_bytes();
    // Whole cache lines where there are any.
    const std::int64_t row_bytes =
        bytes % kAlignmentBytes == 0 ? kAlignmentBytes : size_bytes(buffer.type->dtype);
    bound.counts = comm::even_counts(bytes / row_bytes, std::ssize(bound.group));
    bound.exchange = {.kind = exchange.kind,
                      .group = bound.group,
                      .counts = bound.counts,
                      .row_bytes = row_bytes,
                      .dtype = buffer.type->dtype,
                      .input = buffer.data,
                      .output = buffer.data,
                      .label = exchange.label};
    bound.workspace_offset = workspace_bytes;
    workspace_bytes += round_up(comm::workspace_bytes(std::ssize(bound.group)), kAlignmentBytes);
  }
  workspace_ = device::Memory(workspace_bytes);
}

ExchangeDriver::~ExchangeDriver() {
  if (std::ranges::any_of(exchanges_, &Bound::is_under_way))
    communicator_->abort("rank ended while an exchange was under way");
}

void ExchangeDriver::begin(const Variant& variant) {
  next_ = variant.exchange_points.data();
  end_ = next_ + variant.exchange_points.size();
}

void ExchangeDriver::move(std::size_t call) {
  for (; next_ != end_ && static_cast<std::size_t>(next_->call) <= call; ++next_) {
    Bound& bound = exchanges_[static_cast<std::size_t>(next_->exchange)];
    if (next_->step == ExchangeStep::kAwait) {
      communicator_->await(bound.number);
      bound.is_under_way = false;
      continue;
    }
    bound.is_under_way = true;
    bound.number = communicator_->post(
        bound.exchange,
        std::span(workspace_.data() + bound.workspace_offset,
                  static_cast<std::size_t>(comm::workspace_bytes(std::ssize(bound.group)))));
  }
}

}  // namespace anabatic::runtime
