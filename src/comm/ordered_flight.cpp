// SPDX-License-Identifier: Apache-2.0
#include "comm/ordered_flight.h"

#include <algorithm>

#include "base/error.h"
#include "comm/booking.h"
#include "comm/sum.h"

namespace anabatic::comm {

// An all_reduce has the most messages: parts of the sum, and sums, to and from each member.
std::int64_t OrderedFlight::workspace_bytes(std::int64_t group_size) {
  return booked<OrderedFlight>(1) + booked<Outgoing>(2 * group_size) +
         booked<Incoming>(group_size) + booked<Incoming>(group_size) +
         booked<const std::byte*>(group_size);
}

Flight* OrderedFlight::make(std::span<std::byte> workspace, const Exchange& exchange,
                            const Header& header, std::int32_t rank) {
  Booking booking(workspace);
  auto* flight = new (booking.raw(sizeof(OrderedFlight))) OrderedFlight(exchange, header, rank);
  const std::size_t num_members = exchange.group.size();
  flight->sends_ = booking.take<Outgoing>(2 * num_members);
  flight->copies_ = booking.take<Incoming>(num_members);
  flight->terms_ = booking.take<Incoming>(num_members);
  flight->term_bytes_ = booking.take<const std::byte*>(num_members);
  switch (exchange.kind) {
    case ExchangeKind::kAllGather:
    case ExchangeKind::kBroadcast:
    case ExchangeKind::kSend:
      flight->plan_gather();
      break;
    case ExchangeKind::kExchangeRows:
      flight->plan_rows();
      break;
    case ExchangeKind::kReduceScatter:
      flight->plan_sum();
      break;
    case ExchangeKind::kAllReduce:
      flight->plan_sum();
      flight->plan_sums_to_all();
      break;
  }
  return flight;
}

std::int64_t OrderedFlight::bytes_of(std::size_t member) const {
  return exchange_.counts[member] * exchange_.row_bytes;
}

std::int64_t OrderedFlight::bytes_before(std::size_t member) const {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < member; ++i) bytes += bytes_of(i);
  return bytes;
}

// Messages without bytes are not sent: both sides know their size.
Outgoing& OrderedFlight::send_to(std::size_t member, Block block, std::int64_t bytes) {
  Outgoing& message = sends_[num_sends_++];
  message.peer = exchange_.group[member];
  message.header = header_;
  message.header.bytes = bytes;
  message.block = block;
  message.ready.store(bytes, std::memory_order_relaxed);
  return message;
}

// `own`: where the bytes lie if the member is this rank.
Incoming OrderedFlight::from(std::size_t member, Block own, std::int64_t bytes) const {
  Incoming message{.peer = exchange_.group[member], .header = header_};
  message.header.bytes = bytes;
  if (member == me_) {
    message.block = own;
    message.arrived = bytes;
  }
  return message;
}

void OrderedFlight::copy_from_member(std::size_t member, Block own, std::int64_t bytes,
                                     std::byte* to, bool to_is_free) {
  if (bytes == 0 || (member == me_ && (to == nullptr || to == own.data))) return;
  ANABATIC_CHECK(to != nullptr, "[exchange] {}: no output for what rank {} sends", describe(),
                 exchange_.group[member]);
  Incoming& copy = copies_[num_copies_++] = from(member, own, bytes);
  copy.to = to;
  copy.to_is_free = to_is_free;
}

void OrderedFlight::plan_gather() {
  const Block own{exchange_.input};
  std::byte* to = exchange_.output;
  for (std::size_t i = 0; i < exchange_.group.size(); ++i) {
    if (i != me_ && bytes_of(me_) > 0) send_to(i, own, bytes_of(me_));
    copy_from_member(i, own, bytes_of(i), to);
    if (to != nullptr) to += bytes_of(i);
  }
}

void OrderedFlight::plan_rows() {
  std::int64_t sent_rows = 0;
  std::byte* to = exchange_.output;
  for (std::size_t i = 0; i < exchange_.group.size(); ++i) {
    const std::int64_t rows = exchange_.send_counts[i];
    Block block{.row_bytes = exchange_.row_bytes};
    if (exchange_.row_index != nullptr) {
      block.data = exchange_.input;
      block.row_index = exchange_.row_index + sent_rows;
      block.index_divisor = exchange_.index_divisor;
    } else if (exchange_.input != nullptr) {
      block.data = exchange_.input + sent_rows * exchange_.row_bytes;
    }
    if (i != me_ && rows > 0) send_to(i, block, rows * exchange_.row_bytes);
    ANABATIC_CHECK(i != me_ || rows == exchange_.counts[i],
                   "[exchange] {}: {} rows to itself, {} from itself", describe(), rows,
                   exchange_.counts[i]);
    copy_from_member(i, block, bytes_of(i), to);
    if (to != nullptr) to += bytes_of(i);
    sent_rows += rows;
  }
}

void OrderedFlight::plan_sum() {
  const std::byte* input = exchange_.input;
  for (std::size_t i = 0; i < exchange_.group.size(); ++i) {
    if (i != me_ && bytes_of(i) > 0) send_to(i, {input + bytes_before(i)}, bytes_of(i));
    if (bytes_of(me_) > 0)
      terms_[num_terms_++] = from(i, {input + bytes_before(me_)}, bytes_of(me_));
  }
  sum_ = exchange_.output;
  first_sum_send_ = num_sends_;
}

// A sum is sent on as far as it is formed. What a member has summed has been read from every other
// one, so that output may lie over input. Then a transport may still read what a sum replaces.
void OrderedFlight::plan_sums_to_all() {
  sum_ = exchange_.output + bytes_before(me_);
  for (std::size_t i = 0; i < exchange_.group.size(); ++i) {
    if (i == me_) continue;
    if (bytes_of(me_) > 0)
      send_to(i, {sum_}, bytes_of(me_)).ready.store(0, std::memory_order_relaxed);
    copy_from_member(i, {}, bytes_of(i), exchange_.output + bytes_before(i),
                     exchange_.output != exchange_.input);
  }
}

// Between two ranks the parts of a sum come before the sums, at both ends.
void OrderedFlight::start(Transport& transport) {
  for (Outgoing& message : sends_.first(num_sends_)) transport.send(message);
  for (Incoming& message : terms_.first(num_terms_))
    if (message.peer != rank_) transport.receive(message);
  for (Incoming& copy : copies_.first(num_copies_))
    if (copy.peer != rank_) transport.receive(copy);
}

bool OrderedFlight::copy_piece(Transport& transport, Incoming& copy) {
  if (copy.is_complete() || !poll(transport, copy)) return false;
  const std::int64_t bytes = std::min(kPieceBytes, copy.arrived - copy.used);
  if (copy.block.data != copy.to)  // else the transport has put it there
    copy_from(copy.block, copy.used, bytes, copy.to + copy.used);
  copy.used += bytes;
  if (copy.is_complete() && copy.peer != rank_) transport.finish(copy);
  return true;
}

bool OrderedFlight::sum_piece(Transport& transport) {
  const auto terms = terms_.first(num_terms_);
  if (terms.empty() || terms[0].is_complete()) return false;
  const std::int64_t used = terms[0].used;
  std::int64_t bytes = kPieceBytes;
  for (Incoming& term : terms) {
    if (!poll(transport, term)) return false;
    bytes = std::min(bytes, term.arrived - used);
  }
  // All but the last piece are of whole elements, as pieces and messages are.
  for (std::size_t i = 0; i < terms.size(); ++i) term_bytes_[i] = terms[i].block.data + used;
  sum_terms(term_bytes_.first(terms.size()), bytes, exchange_.dtype, sum_ + used);
  for (Incoming& term : terms) {
    term.used += bytes;
    if (term.is_complete() && term.peer != rank_) transport.finish(term);
  }
  for (Outgoing& message : sends_.subspan(first_sum_send_, num_sends_ - first_sum_send_))
    transport.advance(message, used + bytes);
  return true;
}

bool OrderedFlight::move_piece(Transport& transport) {
  if (sum_piece(transport)) return true;
  for (std::size_t i = 0; i < num_copies_; ++i) {
    Incoming& copy = copies_[(next_copy_ + i) % num_copies_];
    if (!copy_piece(transport, copy)) continue;
    next_copy_ = (next_copy_ + i + 1) % num_copies_;
    return true;
  }
  return false;
}

bool OrderedFlight::is_complete(Transport& transport) {
  if (is_complete_) return true;
  for (const Incoming& term : terms_.first(num_terms_))
    if (!term.is_complete()) return false;
  for (const Incoming& copy : copies_.first(num_copies_))
    if (!copy.is_complete()) return false;
  for (Outgoing& message : sends_.first(num_sends_)) {
    transport.poll(message);
    if (!message.is_taken.load(std::memory_order_acquire)) return false;
  }
  return is_complete_ = true;
}

std::string OrderedFlight::missing(Transport& transport) {
  std::string text;
  const auto add = [&](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  const auto add_incoming = [&](const Incoming& message) {
    if (message.is_complete() || message.arrived > message.used) return;
    if (message.arrived == 0) add(fmt::format("nothing came from rank {}", message.peer));
    if (message.arrived > 0)
      add(fmt::format("{} of {} bytes came from rank {}", message.arrived, message.header.bytes,
                      message.peer));
  };
  for (const Incoming& term : terms_.first(num_terms_)) add_incoming(term);
  for (const Incoming& copy : copies_.first(num_copies_)) add_incoming(copy);
  for (Outgoing& message : sends_.first(num_sends_)) {
    transport.poll(message);
    if (!message.is_taken.load(std::memory_order_acquire))
      add(fmt::format("rank {} did not take its part", message.peer));
  }
  return text;
}

void OrderedFlight::add_missing_ranks(Transport& transport, std::vector<std::int32_t>& ranks) {
  // A sum polls its terms only up to the first that is missing.
  const auto is_missing = [&](Incoming& message) {
    return !message.is_complete() && !poll(transport, message);
  };
  const std::size_t before = ranks.size();
  for (Incoming& term : terms_.first(num_terms_))
    if (is_missing(term)) ranks.push_back(term.peer);
  if (ranks.size() > before) return;
  for (Incoming& copy : copies_.first(num_copies_))
    if (is_missing(copy)) ranks.push_back(copy.peer);
  if (ranks.size() > before) return;
  for (const Outgoing& message : sends_.first(num_sends_))
    if (!message.is_taken.load(std::memory_order_acquire) &&
        std::find(ranks.begin(), ranks.end(), message.peer) == ranks.end())
      ranks.push_back(message.peer);
}

}  // namespace anabatic::comm
