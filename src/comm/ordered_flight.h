// SPDX-License-Identifier: Apache-2.0
// An exchange by our own messages: what goes to whom, how far each is, and what becomes of them.
// Sums add by the tree of sum.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/flight.h"

namespace anabatic::comm {

class OrderedFlight final : public Flight {
 public:
  // InternalError: workspace too small or not aligned to 64.
  static Flight* make(std::span<std::byte> workspace, const Exchange& exchange,
                      const Header& header, std::int32_t rank);

  // In the workspace of an exchange in a group of so many.
  static std::int64_t workspace_bytes(std::int64_t group_size);

  // Sends and receives all of its messages, in the order of the group.
  void start(Transport& transport) override;
  // Copies or sums the next piece that has arrived, of its messages in turn.
  bool move_piece(Transport& transport) override;
  bool is_complete(Transport& transport) override;
  std::string missing(Transport& transport) override;
  // Those of which nothing has come; else those of which more has to come, or that have to take
  // their part.
  void add_missing_ranks(Transport& transport, std::vector<std::int32_t>& ranks) override;

 private:
  OrderedFlight(const Exchange& exchange, const Header& header, std::int32_t rank)
      : Flight(exchange, header, rank) {}
  void plan_gather();
  void plan_rows();
  void plan_sum();
  void plan_sums_to_all();
  Outgoing& send_to(std::size_t member, Block block, std::int64_t bytes);
  Incoming from(std::size_t member, Block own, std::int64_t bytes) const;
  void copy_from_member(std::size_t member, Block own, std::int64_t bytes, std::byte* to,
                        bool to_is_free = true);
  std::int64_t bytes_of(std::size_t member) const;      // by counts
  std::int64_t bytes_before(std::size_t member) const;  // of all members before it
  bool copy_piece(Transport& transport, Incoming& copy);
  bool sum_piece(Transport& transport);

  std::span<Outgoing> sends_;
  std::span<Incoming> copies_;  // copied to their places in the output
  std::span<Incoming> terms_;   // of the sum, one a member
  std::span<const std::byte*> term_bytes_;
  std::size_t num_sends_ = 0, num_copies_ = 0, num_terms_ = 0;
  std::size_t first_sum_send_ = 0;  // from here on, `sends_` hold the sum
  std::size_t next_copy_ = 0;       // whose turn it is
  std::byte* sum_ = nullptr;
  bool is_complete_ = false;
};

}  // namespace anabatic::comm
