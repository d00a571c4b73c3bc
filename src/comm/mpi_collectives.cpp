// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_collectives.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/error.h"
#include "comm/booking.h"
#include "device/clock.h"

namespace anabatic::comm::mpi {
namespace {

// A link may be as slow as this: so long the library may have something to do at every look.
constexpr std::int64_t kNanosecondsAByte = 10;

MPI_Datatype sum_type(DType dtype) {
  if (dtype == DType::kFloat64) return MPI_DOUBLE;
  ANABATIC_CHECK(dtype == DType::kFloat32, "[mpi] a sum of {}", to_string(dtype));
  return MPI_FLOAT;
}

// Counts of elements and where they begin, as MPI takes them.
void fill(std::span<const std::int64_t> from, std::int64_t factor, std::span<int> counts,
          std::span<int> places) {
  std::int64_t place = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    counts[i] = static_cast<int>(from[i] * factor);
    places[i] = static_cast<int>(place);
    place += from[i] * factor;
  }
}

// What MPI takes as the input of an exchange.
const void* input_of(const void* input, const void* output) {
  return input == output ? MPI_IN_PLACE : input;
}

// Calls `work` with the first element and the number of each cut.
template <class F>
void for_each_cut(std::int64_t count, std::int64_t most, const F& work) {
  for (std::int64_t first = 0; first < count; first += most)
    work(first, static_cast<int>(std::min(most, count - first)));
}

}  // namespace

MpiCollectives::MpiCollectives(const std::vector<std::vector<std::int32_t>>& groups,
                               std::int32_t rank, std::int64_t most_count)
    : most_count_(most_count) {
  const std::lock_guard lock(mutex());
  for (const std::vector<std::int32_t>& ranks : groups) {
    const auto me = std::ranges::find(ranks, rank);
    ANABATIC_CHECK(me != ranks.end(), "[mpi] rank {} is in none of the groups", rank);
    Group& group = groups_.emplace_back(Group{.ranks = ranks});
    check(MPI_Comm_split(MPI_COMM_WORLD, *std::ranges::min_element(ranks),
                         static_cast<int>(me - ranks.begin()), &group.communicator),
          "MPI_Comm_split");
    check(MPI_Comm_set_errhandler(group.communicator, MPI_ERRORS_RETURN),
          "MPI_Comm_set_errhandler");
  }
}

const MpiCollectives::Group* MpiCollectives::find(std::span<const std::int32_t> group) const {
  for (const Group& each : groups_)
    if (std::ranges::equal(each.ranks, group)) return &each;
  return nullptr;
}

bool MpiCollectives::has(std::span<const std::int32_t> group) const {
  return find(group) != nullptr;
}

MPI_Request& MpiCollectives::Calls::next() {
  ANABATIC_CHECK(num_requests < requests.size(), "[mpi] an exchange of more than {} calls",
                 requests.size());
  return requests[num_requests++] = MPI_REQUEST_NULL;
}

void MpiCollectives::start(const Exchange& exchange, std::size_t me, std::span<std::byte> room) {
  static_assert(sizeof(Calls) <= 256 && sizeof(MPI_Request) <= sizeof(void*));
  const std::lock_guard lock(mutex());
  const Group* group = find(exchange.group);
  ANABATIC_CHECK(group != nullptr, "[mpi] no communicator for the group of {}", exchange.label);
  ANABATIC_CHECK(exchange.row_index == nullptr, "[mpi] {}: rows by an index", exchange.label);
  const std::size_t num_members = exchange.group.size();
  Calls& calls = *new (room.data()) Calls;
  const auto most = static_cast<std::size_t>(most_calls(std::ssize(exchange.group)));
  Booking booking(room.subspan(round_up(sizeof(Calls), std::size_t{kBookingAlignment})));
  calls.requests = booking.take<MPI_Request>(most);
  calls.send_counts = booking.take<int>(num_members);
  calls.send_places = booking.take<int>(num_members);
  calls.counts = booking.take<int>(num_members);
  calls.places = booking.take<int>(num_members);
  open_.append(calls);
  switch (exchange.kind) {
    case ExchangeKind::kAllReduce:
      all_reduce(exchange, group->communicator, calls);
      break;
    case ExchangeKind::kReduceScatter:
      reduce_scatter(exchange, me, group->communicator, calls);
      break;
    case ExchangeKind::kAllGather:
    case ExchangeKind::kBroadcast:
    case ExchangeKind::kSend:
      gather(exchange, me, group->communicator, calls);
      break;
    case ExchangeKind::kExchangeRows:
      exchange_rows(exchange, group->communicator, calls);
      break;
  }
  busy_until_ = std::max(busy_until_, device::wall_nanoseconds()) +
                kNanosecondsAByte * (sent_bytes(exchange, me) + received_bytes(exchange, me));
}

bool MpiCollectives::has_ended(std::span<std::byte> room) {
  const std::lock_guard lock(mutex());
  Calls& calls = *std::launder(reinterpret_cast<Calls*>(room.data()));
  while (calls.num_ended < calls.num_requests && mpi::has_ended(calls.requests[calls.num_ended]))
    ++calls.num_ended;
  if (calls.num_ended < calls.num_requests) return false;
  open_.remove(calls);
  if (calls.bytes > 0) std::memmove(calls.to, calls.from, calls.bytes);
  return true;
}

void MpiCollectives::free() {
  for (auto& [bytes, type] : row_types_) check(MPI_Type_free(&type), "MPI_Type_free");
  for (Group& group : groups_) check(MPI_Comm_free(&group.communicator), "MPI_Comm_free");
}

// Its memory is taken by the first exchange with such rows.
MPI_Datatype MpiCollectives::row_type(std::int64_t row_bytes) {
  for (const auto& [bytes, type] : row_types_)
    if (bytes == row_bytes) return type;
  ANABATIC_CHECK(row_bytes <= kMostCount, "[mpi] rows of {} bytes", row_bytes);
  MPI_Datatype& type = row_types_.emplace_back(row_bytes, MPI_DATATYPE_NULL).second;
  check(MPI_Type_contiguous(static_cast<int>(row_bytes), MPI_BYTE, &type), "MPI_Type_contiguous");
  check(MPI_Type_commit(&type), "MPI_Type_commit");
  return type;
}

void MpiCollectives::all_reduce(const Exchange& exchange, MPI_Comm communicator,
                                Calls& calls) const {
  const std::int64_t element = size_bytes(exchange.dtype);
  for_each_cut(
      total_of(exchange.counts) * exchange.row_bytes / element, most_count_,
      [&](std::int64_t first, int count) {
        std::byte* output = exchange.output + first * element;
        check(MPI_Iallreduce(input_of(exchange.input + first * element, output), output, count,
                             sum_type(exchange.dtype), MPI_SUM, communicator, &calls.next()),
              "MPI_Iallreduce");
      });
}

void MpiCollectives::reduce_scatter(const Exchange& exchange, std::size_t me, MPI_Comm communicator,
                                    Calls& calls) const {
  const std::int64_t element = size_bytes(exchange.dtype), width = exchange.row_bytes / element;
  const std::byte* own = exchange.input + exchange.row_bytes * total_of(exchange.counts.first(me));
  const bool is_in_place = exchange.output == own;
  if (total_of(exchange.counts) * width <= most_count_) {
    fill(exchange.counts, width, calls.counts, calls.places);
    // MPI puts a sum in place to the front of the buffer.
    auto* front = const_cast<std::byte*>(exchange.input);
    check(MPI_Ireduce_scatter(is_in_place ? MPI_IN_PLACE : exchange.input,
                              is_in_place ? front : exchange.output, calls.counts.data(),
                              sum_type(exchange.dtype), MPI_SUM, communicator, &calls.next()),
          "MPI_Ireduce_scatter");
    if (is_in_place && own != front) {
      calls.from = front;
      calls.to = exchange.output;
      calls.bytes = static_cast<std::size_t>(exchange.counts[me] * exchange.row_bytes);
    }
    return;
  }
  const std::byte* part = exchange.input;
  for (std::size_t member = 0; member < exchange.counts.size(); ++member) {
    for_each_cut(exchange.counts[member] * width, most_count_, [&](std::int64_t first, int count) {
      const std::byte* input = part + first * element;
      std::byte* output = member == me ? exchange.output + first * element : nullptr;
      check(MPI_Ireduce(input_of(input, output), output, count, sum_type(exchange.dtype), MPI_SUM,
                        static_cast<int>(member), communicator, &calls.next()),
            "MPI_Ireduce");
    });
    part += exchange.counts[member] * exchange.row_bytes;
  }
}

// Each member's part is broadcast where one alone has rows, or where there are many.
void MpiCollectives::gather(const Exchange& exchange, std::size_t me, MPI_Comm communicator,
                            Calls& calls) {
  const MPI_Datatype type = row_type(exchange.row_bytes);
  const std::int64_t before = exchange.row_bytes * total_of(exchange.counts.first(me));
  std::byte* own = exchange.output == nullptr ? nullptr : exchange.output + before;
  if (exchange.kind == ExchangeKind::kAllGather && total_of(exchange.counts) <= most_count_) {
    fill(exchange.counts, 1, calls.counts, calls.places);
    check(MPI_Iallgatherv(input_of(exchange.input, own), calls.counts[me], type, exchange.output,
                          calls.counts.data(), calls.places.data(), type, communicator,
                          &calls.next()),
          "MPI_Iallgatherv");
    return;
  }
  const std::int64_t own_bytes = exchange.counts[me] * exchange.row_bytes;
  if (own != nullptr && own != exchange.input && own_bytes > 0)
    std::memcpy(own, exchange.input, static_cast<std::size_t>(own_bytes));
  std::byte* part = exchange.output;
  for (std::size_t member = 0; member < exchange.counts.size(); ++member) {
    std::byte* data = member == me ? const_cast<std::byte*>(exchange.input) : part;
    for_each_cut(exchange.counts[member], most_count_, [&](std::int64_t first, int count) {
      check(MPI_Ibcast(data + first * exchange.row_bytes, count, type, static_cast<int>(member),
                       communicator, &calls.next()),
            "MPI_Ibcast");
    });
    if (part != nullptr) part += exchange.counts[member] * exchange.row_bytes;
  }
}

void MpiCollectives::exchange_rows(const Exchange& exchange, MPI_Comm communicator, Calls& calls) {
  ANABATIC_CHECK(
      total_of(exchange.send_counts) <= kMostCount && total_of(exchange.counts) <= kMostCount,
      "[mpi] {}: {} rows to send, {} to receive", exchange.label, total_of(exchange.send_counts),
      total_of(exchange.counts));
  const MPI_Datatype type = row_type(exchange.row_bytes);
  fill(exchange.send_counts, 1, calls.send_counts, calls.send_places);
  fill(exchange.counts, 1, calls.counts, calls.places);
  check(MPI_Ialltoallv(exchange.input, calls.send_counts.data(), calls.send_places.data(), type,
                       exchange.output, calls.counts.data(), calls.places.data(), type,
                       communicator, &calls.next()),
        "MPI_Ialltoallv");
}

}  // namespace anabatic::comm::mpi
