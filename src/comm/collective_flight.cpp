// SPDX-License-Identifier: Apache-2.0
#include "comm/collective_flight.h"

#include "base/error.h"
#include "comm/booking.h"
#include "comm/collectives.h"

namespace anabatic::comm {
namespace {

constexpr std::int64_t kStateBytes = 256;  // of what a library keeps of an exchange
constexpr std::int64_t kIntsAMember = 4;   // counts and places of what it sends and gets

}  // namespace

std::int64_t collective_room_bytes(std::int64_t group_size) {
  return kStateBytes + booked<void*>(most_calls(group_size)) +  // a request is no larger
         kIntsAMember * booked<int>(group_size);
}

std::int64_t CollectiveFlight::workspace_bytes(std::int64_t group_size) {
  return booked<CollectiveFlight>(1) + collective_room_bytes(group_size);
}

CollectiveFlight::CollectiveFlight(const Exchange& exchange, const Header& header,
                                   std::int32_t rank)
    : Flight(exchange, header, rank) {
  const std::size_t num_members = exchange.group.size();
  header_.bytes = sizeof sent_;
  sign_.peer = exchange.group[(me_ + 1) % num_members];
  sign_.header = header_;
  sign_.block.data = &sent_;
  sign_.ready.store(header_.bytes, std::memory_order_relaxed);
  awaited_ = {.peer = exchange.group[(me_ + num_members - 1) % num_members], .header = header_};
  awaited_.to = &received_;
  awaited_.to_is_free = true;
}

Flight* CollectiveFlight::make(std::span<std::byte> workspace, const Exchange& exchange,
                               const Header& header, std::int32_t rank) {
  Booking booking(workspace);
  auto* flight =
      new (booking.raw(sizeof(CollectiveFlight))) CollectiveFlight(exchange, header, rank);
  const auto bytes = static_cast<std::size_t>(collective_room_bytes(std::ssize(exchange.group)));
  flight->room_ = {static_cast<std::byte*>(booking.raw(bytes)), bytes};
  return flight;
}

void CollectiveFlight::start(Transport& transport) {
  ANABATIC_CHECK(
      transport.collectives() != nullptr && transport.collectives()->has(exchange_.group),
      "[exchange] {}: its members have not met for collectives", describe());
  transport.send(sign_);
  transport.receive(awaited_);
  transport.collectives()->start(exchange_, me_, room_);
}

bool CollectiveFlight::move_piece(Transport& transport) {
  if (!awaited_.is_complete() && poll(transport, awaited_)) {
    awaited_.used = awaited_.arrived;
    transport.finish(awaited_);
    return true;
  }
  if (has_ended_) return false;
  has_ended_ = transport.collectives()->has_ended(room_);
  return has_ended_;
}

bool CollectiveFlight::is_complete(Transport& transport) {
  if (!has_ended_ || !awaited_.is_complete()) return false;
  transport.poll(sign_);
  return sign_.is_taken.load(std::memory_order_acquire);
}

std::string CollectiveFlight::missing(Transport&) {
  if (awaited_.is_complete()) return "the library's own collective has not ended";
  return fmt::format("nothing came from rank {}", awaited_.peer);
}

void CollectiveFlight::add_missing_ranks(Transport&, std::vector<std::int32_t>& ranks) {
  if (!awaited_.is_complete()) ranks.push_back(awaited_.peer);
}

}  // namespace anabatic::comm
