// SPDX-License-Identifier: Apache-2.0
// Posts and awaits a program's exchanges at the positions that the program names.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "device/memory.h"
#include "runtime/program.h"
#include "spec/mesh.h"

namespace anabatic::runtime {

// The rank that runs a program. Alone: without a communicator.
struct RankContext {
  spec::Mesh mesh{};
  comm::Communicator* communicator = nullptr;
  std::int32_t rank() const { return communicator == nullptr ? 0 : communicator->rank(); }
  bool is_first() const { return rank() == 0; }
};

class ExchangeDriver {
 public:
  // `resolve` gives the bytes of an operand. They, program and communicator outlive the driver.
  // InvalidArgument when the program exchanges and there is no communicator of the mesh's size.
  ExchangeDriver(const Program& program, const RankContext& rank,
                 const std::function<TensorView(const Operand&)>& resolve);
  // Ends the exchanges of all ranks if one is under way: its bytes are about to go.
  ~ExchangeDriver();
  ExchangeDriver(const ExchangeDriver&) = delete;
  ExchangeDriver& operator=(const ExchangeDriver&) = delete;

  // Before a variant's calls. A forward may follow one that had no backward: what that one has left
  // under way ends first. CommError as below.
  void begin(Action action, const Variant& variant);
  // Posts and awaits before this one of them. CommError: what ended the exchanges of all ranks.
  void before(std::size_t call) {
    if (next_ != end_ && static_cast<std::size_t>(next_->call) <= call) move(call);
  }
  // After the last one.
  void end(const Variant& variant) { before(variant.calls.size()); }

  std::int64_t workspace_bytes() const { return workspace_.bytes(); }
  // What each exchange of the program has taken so far.
  std::vector<comm::CommStats> took() const;

 private:
  // Counts of exchange_rows, which are read when it is posted, and the rows that they may reach.
  struct BoundRows {
    const std::int32_t *send = nullptr, *receive = nullptr;
    std::int64_t most_sent = 0, most_received = 0;
  };
  struct Bound {
    comm::Exchange exchange;
    std::vector<std::int32_t> group;
    std::vector<std::int64_t> counts, send_counts;
    BoundRows rows;
    std::int64_t workspace_offset = 0, workspace_bytes = 0;
    std::uint32_t number = 0;  // of its last post
    bool is_under_way = false;
    comm::CommStats took{};
  };
  using Resolve = std::function<TensorView(const Operand&)>;
  static void bind_in_place(const Exchange& exchange, std::int32_t rank, const Resolve& resolve,
                            Bound& bound);
  static void bind_rows(const Exchange& exchange, const Resolve& resolve, Bound& bound);
  static void read_counts(Bound& bound);
  void await(Bound& bound);
  void move(std::size_t call);

  comm::Communicator* communicator_ = nullptr;
  std::vector<Bound> exchanges_;
  device::Memory workspace_;
  const ExchangePoint *next_ = nullptr, *end_ = nullptr;
};

}  // namespace anabatic::runtime
