// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/step_sums.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/error.h"

namespace anabatic::train {
namespace {

constexpr std::size_t kAlignmentBytes = 64;  // of a workspace

}  // namespace

StepSums::StepSums(const runtime::RankContext& rank, std::size_t most_values)
    : rank_(rank),
      group_(rank.communicator == nullptr ? 1
                                          : static_cast<std::size_t>(rank.communicator->size())),
      counts_(group_.size(), 0) {
  std::iota(group_.begin(), group_.end(), 0);
  if (rank.communicator == nullptr) return;
  gathered_.resize(std::max<std::size_t>(most_values, 1) * sizeof(double) * group_.size());
  const auto bytes = static_cast<std::size_t>(comm::workspace_bytes(std::ssize(group_)));
  std::size_t room = bytes + kAlignmentBytes;
  workspace_storage_.resize(room);
  void* aligned = workspace_storage_.data();
  ANABATIC_CHECK(std::align(kAlignmentBytes, bytes, aligned, room) != nullptr,
                 "[ranks] no room for a workspace of {} bytes", bytes);
  workspace_ = {static_cast<std::byte*>(aligned), bytes};
}

std::int64_t StepSums::num_bytes() const {
  return std::ssize(gathered_) + std::ssize(workspace_storage_);
}

void StepSums::exchange(comm::Exchange exchange, comm::Patience patience) {
  exchange.group = group_;
  exchange.counts = counts_;
  rank_.communicator->await(rank_.communicator->post(exchange, workspace_), patience);
}

// Fills gathered_ with the bytes of all ranks.
void StepSums::gather(std::span<const std::byte> own) {
  ANABATIC_CHECK(own.size() * group_.size() <= gathered_.size(), "[ranks] {} bytes of {}",
                 own.size(), gathered_.size());
  std::ranges::fill(counts_, std::ssize(own));
  exchange({.kind = comm::ExchangeKind::kAllGather,
            .row_bytes = 1,
            .input = own.data(),
            .output = gathered_.data(),
            .label = "sums of a step"},
           comm::Patience::kLimited);
}

template <class T>
T StepSums::gathered(std::size_t place) const {
  T value;
  std::memcpy(&value, gathered_.data() + place * sizeof(T), sizeof(T));
  return value;
}

void StepSums::take_largest(std::span<double> values) {
  if (rank_.communicator == nullptr) return;
  gather(std::as_bytes(values));
  const std::size_t count = values.size();
  std::size_t largest = 0;
  for (std::size_t rank = 1; rank < group_.size(); ++rank)
    if (gathered<double>(rank * count) > gathered<double>(largest * count)) largest = rank;
  for (std::size_t i = 0; i < count; ++i) values[i] = gathered<double>(largest * count + i);
}

void StepSums::add_in_order(double& total, double own) {
  if (rank_.communicator == nullptr) {
    total += own;
    return;
  }
  gather(std::as_bytes(std::span(&own, 1)));
  for (std::size_t rank = 0; rank < group_.size(); ++rank) total += gathered<double>(rank);
}

void StepSums::sum(std::span<std::int64_t> values) {
  if (rank_.communicator == nullptr || values.empty()) return;
  gather(std::as_bytes(values));
  const std::size_t count = values.size();
  std::ranges::fill(values, 0);
  for (std::size_t rank = 0; rank < group_.size(); ++rank)
    for (std::size_t i = 0; i < count; ++i) values[i] += gathered<std::int64_t>(rank * count + i);
}

void StepSums::sum(std::span<const double> leaves, std::span<double> total) {
  const bool is_alone = rank_.communicator == nullptr;
  if (!is_alone) gather(std::as_bytes(leaves));
  std::ranges::fill(total, 0.0);
  for (std::size_t i = 0; i < leaves.size() * group_.size(); ++i)
    total[i % total.size()] += is_alone ? leaves[i] : gathered<double>(i);
}

void StepSums::broadcast(std::span<std::byte> bytes) {
  if (rank_.communicator == nullptr) return;
  std::ranges::fill(counts_, 0);
  counts_[0] = std::ssize(bytes);
  exchange({.kind = comm::ExchangeKind::kBroadcast,
            .row_bytes = 1,
            .input = rank_.is_first() ? bytes.data() : nullptr,
            .output = rank_.is_first() ? nullptr : bytes.data(),
            .label = "values of the first rank"},
           comm::Patience::kUnlimited);
}

void StepSums::broadcast(std::string& text) {
  std::int64_t size = std::ssize(text);
  broadcast(std::as_writable_bytes(std::span(&size, 1)));
  text.resize(static_cast<std::size_t>(size));
  if (size > 0) broadcast(std::as_writable_bytes(std::span(text)));
}

void StepSums::bring(std::int32_t from, std::span<std::byte> bytes) {
  if (rank_.communicator == nullptr || from == 0) return;
  pair_ = {0, from};
  const std::array counts{std::int64_t{0}, std::ssize(bytes)};
  const bool sends = rank_.rank() == from;
  rank_.communicator->await(rank_.communicator->post({.kind = comm::ExchangeKind::kSend,
                                                      .group = pair_,
                                                      .counts = counts,
                                                      .row_bytes = 1,
                                                      .input = sends ? bytes.data() : nullptr,
                                                      .output = sends ? nullptr : bytes.data(),
                                                      .label = "bytes for the first rank"},
                                                     workspace_),
                            comm::Patience::kUnlimited);
}

std::string StepSums::bring_text(std::int32_t from, std::string own) {
  const bool takes_part = rank() == 0 || rank() == from;
  std::int64_t size = std::ssize(own);
  bring(from, takes_part ? std::as_writable_bytes(std::span(&size, 1)) : std::span<std::byte>());
  if (takes_part) own.resize(static_cast<std::size_t>(size));
  bring(from, takes_part ? std::as_writable_bytes(std::span(own)) : std::span<std::byte>());
  return own;
}

void StepSums::share(std::span<std::byte> bytes, std::span<const std::int64_t> parts) {
  if (rank_.communicator == nullptr) return;
  std::ranges::copy(parts, counts_.begin());
  const std::int64_t own = std::accumulate(parts.begin(), parts.begin() + rank(), std::int64_t{0});
  exchange({.kind = comm::ExchangeKind::kAllGather,
            .row_bytes = 1,
            .input = bytes.data() + own,
            .output = bytes.data(),
            .label = "parts of each rank"},
           comm::Patience::kUnlimited);
}

Verdict StepSums::begin(std::uint64_t plan, std::int64_t step, Verdict own) {
  if (rank_.communicator == nullptr) return own;
  rank_.communicator->begin_step(plan, step);
  std::array verdict{static_cast<std::byte>(own)};
  std::ranges::fill(counts_, 1);
  exchange({.kind = comm::ExchangeKind::kAllGather,
            .row_bytes = 1,
            .input = verdict.data(),
            .output = gathered_.data(),
            .label = "what the first rank does"},
           comm::Patience::kUnlimited);
  const std::span others = std::span(gathered_).subspan(1, group_.size() - 1);
  is_end_asked_ = is_end_asked_ ||
                  std::ranges::find(others, static_cast<std::byte>(Verdict::kEnds)) != others.end();
  return static_cast<Verdict>(gathered_[0]);
}

StepTotals StepSums::totals(const io::StepBatch& own) {
  const StepTotals of_rank = totals_of(own);
  if (rank_.communicator == nullptr) return of_rank;
  gather(std::as_bytes(std::span(&of_rank, 1)));
  StepTotals all;
  for (std::size_t rank = 0; rank < group_.size(); ++rank) {
    const auto other = gathered<StepTotals>(rank);
    all.unmasked_tokens += other.unmasked_tokens;
    all.real_tokens += other.real_tokens;
    all.num_documents += other.num_documents;
    all.label_weight += other.label_weight;
  }
  return all;
}

}  // namespace anabatic::train
