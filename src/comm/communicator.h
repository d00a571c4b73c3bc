// SPDX-License-Identifier: Apache-2.0
// The exchanges of one rank: posted in an order that all ranks share, moved while the rank
// computes, and awaited where their results are needed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "comm/exchange.h"
#include "comm/transport.h"

namespace anabatic::comm {

struct CommunicatorOptions {
  double patience_seconds = 600;  // an await with patience in which nothing moves for so long fails
  double report_seconds = 30;     // after so long, and again each time, a line says who is missing
  // A thread that moves bytes while nobody awaits them. Without it they move in awaits alone.
  bool has_helper = true;
  int num_compute_threads = 0;  // whose cores the helper leaves; 0: it runs anywhere
};

enum class Patience : std::uint8_t { kLimited, kUnlimited };

struct CommStats {  // of an exchange, or of all since the communicator began
  std::int64_t sent_bytes = 0, received_bytes = 0;  // to and from other ranks
  std::int64_t busy_nanoseconds = 0;    // in copies and sums, of the helper and of awaits
  std::int64_t waited_nanoseconds = 0;  // of the caller in await()

  CommStats& operator+=(const CommStats& more);
  CommStats operator-(const CommStats& before) const;
};

// Used by one thread. Nothing but errors and lines about long waits allocates. An abort of any
// rank, or the first error, ends the communicators of all ranks: from then on every call throws
// CommError with its text. Who frees memory of exchanges under way for another reason, such as an
// exception, aborts before that.
class Communicator {
 public:
  explicit Communicator(std::unique_ptr<Transport> transport,
                        const CommunicatorOptions& options = {});
  // Aborts all ranks if an exchange is still under way. Its memory must still be there.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  std::int32_t rank() const;
  std::int32_t size() const;

  // Exchanges count from 0 again. `plan` is the hash of what all ranks agreed to run.
  // InternalError while an exchange has not been awaited.
  void begin_step(std::uint64_t plan, std::int64_t step);

  // Whether a group's exchanges can be Method::kMpi.
  bool has_collectives(std::span<const std::int32_t> group) const;

  // Starts an exchange; returns its number: its place in the order of posts. All ranks post the
  // same exchanges in the same order; those outside a group post it too. `workspace` has
  // workspace_bytes() of the method. Until the await, it belongs to the communicator, with input,
  // output, and all that the exchange points to. InternalError for a bad exchange.
  std::uint32_t post(const Exchange& exchange, std::span<std::byte> workspace);

  // Whether an await would return at once.
  bool test(std::uint32_t number);

  // Returns when the output is complete and the input free. All exchanges below `number` must have
  // been posted, else InternalError: with this rule no order of awaits hangs. CommError: a peer
  // sent another message, a limited patience ended, or a rank aborted. Returns what the exchange
  // took; nothing for a rank outside its group.
  CommStats await(std::uint32_t number, Patience patience = Patience::kLimited);

  // Ends the exchanges of all ranks. When it returns, nobody reads or writes memory of this rank's
  // exchanges any more.
  void abort(const std::string& text);

  CommStats stats() const;
  // By rank: nanoseconds of awaits in which nothing moved and that rank's part was missing. A rank
  // whose part had begun to arrive counts only where no other was missing. For the caller's thread.
  std::span<const std::int64_t> lost_nanoseconds() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace anabatic::comm
