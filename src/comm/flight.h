// SPDX-License-Identifier: Apache-2.0
// An exchange under way at one rank: its messages, how far each is, and what becomes of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "comm/message.h"
#include "comm/transport.h"

namespace anabatic::comm {

// Lies with its messages in the workspace of the exchange. Used under the mutex of the seat.
class Flight {
 public:
  // `header` has plan, step and number. InternalError: workspace too small or not aligned to 64.
  static Flight* make(std::span<std::byte> workspace, const Exchange& exchange,
                      const Header& header, std::int32_t rank);

  // In the workspace of an exchange in a group of so many.
  static std::int64_t workspace_bytes(std::int64_t group_size);

  // Sends and receives all of its messages, in the order of the group.
  void start(Transport& transport);

  // Copies or sums the next piece that has arrived, of its messages in turn. False: none has.
  // CommError as Transport::poll, with the label.
  bool move_piece(Transport& transport);

  // Whether all is here and all that others wanted is taken.
  bool is_complete(Transport& transport);

  std::uint32_t number() const { return header_.number; }
  std::string describe() const;  // "exchange 7 of step 3 (all_gather of layers.3.mlp)"
  // "nothing from rank 2; rank 3 did not take its part".
  std::string missing(Transport& transport);
  // The ranks that this one waits for, after a move_piece that found nothing: those of which
  // nothing has come; else those of which more has to come, or that have to take their part.
  void add_missing_ranks(Transport& transport, std::vector<std::int32_t>& ranks);
  std::int64_t sent_bytes() const;
  std::int64_t received_bytes() const;

  // The communicator's.
  Flight* next = nullptr;
  std::int64_t busy_nanoseconds = 0;

 private:
  Flight(const Exchange& exchange, const Header& header, std::int32_t rank)
      : exchange_(exchange), header_(header), rank_(rank) {}
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
  bool poll(Transport& transport, Incoming& message);   // true: more bytes are there
  bool copy_piece(Transport& transport, Incoming& copy);
  bool sum_piece(Transport& transport);

  Exchange exchange_;
  Header header_;
  std::int32_t rank_;
  std::size_t me_ = 0;  // place in the group
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
