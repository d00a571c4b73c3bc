// SPDX-License-Identifier: Apache-2.0
// MPI's own non-blocking collectives, on a communicator for each group.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "comm/collectives.h"
#include "comm/mpi_calls.h"
#include "comm/mpi_messages.h"

namespace anabatic::comm::mpi {

class MpiCollectives : public Collectives {
 public:
  // All ranks make theirs in the same order, each with its own groups, of which the n-th ones of
  // all ranks are the world in parts. It blocks until they do. No call has more than `most_count`
  // elements.
  MpiCollectives(const std::vector<std::vector<std::int32_t>>& groups, std::int32_t rank,
                 std::int64_t most_count);

  bool has(std::span<const std::int32_t> group) const override;
  void start(const Exchange& exchange, std::size_t me, std::span<std::byte> room) override;
  bool has_ended(std::span<std::byte> room) override;

  // The rest is under MPI's mutex.

  // Until when those under way may move bytes at each look, whatever the looks find.
  std::int64_t busy_until() const { return busy_until_; }
  bool is_under_way() const { return open_.first() != nullptr; }
  template <class F>
  void for_each_request(const F& visit) {
    for (Calls* calls = open_.first(); calls != nullptr; calls = calls->after)
      for (MPI_Request& request : calls->requests.first(calls->num_requests)) visit(request);
  }
  // When none is under way.
  void free();

 private:
  struct Calls {  // of an exchange, in its room
    std::span<MPI_Request> requests;
    std::size_t num_requests = 0, num_ended = 0;
    std::span<int> send_counts, send_places, counts, places;
    // What is to be moved at the end.
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::size_t bytes = 0;
    Calls *before = nullptr, *after = nullptr;  // of the list
    MPI_Request& next();
  };
  struct Group {
    std::vector<std::int32_t> ranks;
    MPI_Comm communicator = MPI_COMM_NULL;
  };

  const Group* find(std::span<const std::int32_t> group) const;
  MPI_Datatype row_type(std::int64_t row_bytes);
  void all_reduce(const Exchange& exchange, MPI_Comm communicator, Calls& calls) const;
  void reduce_scatter(const Exchange& exchange, std::size_t me, MPI_Comm communicator,
                      Calls& calls) const;
  void gather(const Exchange& exchange, std::size_t me, MPI_Comm communicator, Calls& calls);
  void exchange_rows(const Exchange& exchange, MPI_Comm communicator, Calls& calls);

  std::int64_t most_count_;
  std::vector<Group> groups_;
  std::vector<std::pair<std::int64_t, MPI_Datatype>> row_types_;  // by bytes
  List<Calls> open_;
  std::int64_t busy_until_ = 0;
};

}  // namespace anabatic::comm::mpi
