// SPDX-License-Identifier: Apache-2.0
// An exchange under way at one rank, by whichever method (methods.h) it runs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "comm/message.h"
#include "comm/transport.h"

namespace anabatic::comm {

// Lies in the workspace of the exchange. Used under the mutex of the seat.
class Flight {
 public:
  // Begins all that it has to do, without waiting for anybody.
  virtual void start(Transport& transport) = 0;

  // Does the next piece of work that can be done. False: there is none. CommError as
  // Transport::poll, with the label.
  virtual bool move_piece(Transport& transport) = 0;

  // Whether all is here and all that others wanted is taken.
  virtual bool is_complete(Transport& transport) = 0;

  // "nothing came from rank 2; rank 3 did not take its part".
  virtual std::string missing(Transport& transport) = 0;
  // The ranks that this one waits for, as far as it knows, after a move_piece that found nothing.
  virtual void add_missing_ranks(Transport& transport, std::vector<std::int32_t>& ranks) = 0;

  std::uint32_t number() const { return header_.number; }
  std::span<const std::int32_t> group() const { return exchange_.group; }
  std::string describe() const;  // "exchange 7 of step 3 (all_gather of layers.3.mlp)"
  std::int64_t sent_bytes() const { return comm::sent_bytes(exchange_, me_); }
  std::int64_t received_bytes() const { return comm::received_bytes(exchange_, me_); }

  // The communicator's.
  Flight* next = nullptr;
  std::int64_t busy_nanoseconds = 0;

 protected:
  // `header` has plan, step and number.
  Flight(const Exchange& exchange, const Header& header, std::int32_t rank);
  ~Flight() = default;

  bool poll(Transport& transport, Incoming& message) const;  // true: more bytes are there

  Exchange exchange_;
  Header header_;
  std::int32_t rank_;
  std::size_t me_ = 0;  // place in the group
};

}  // namespace anabatic::comm
