// SPDX-License-Identifier: Apache-2.0
// Random lists of exchanges on small integers, with what each rank must hold in the end: computed
// from the definitions, by one thread.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "support/ranks.h"

namespace anabatic::testing {

// An exchange as all ranks see it.
struct ExchangeCase {
  comm::ExchangeKind kind{};
  comm::Method method{};
  std::vector<std::int32_t> group{};
  std::vector<std::int64_t> counts{};                // not of exchange_rows
  std::vector<std::vector<std::int64_t>> to_from{};  // exchange_rows: [receiver][sender]
  std::int64_t row_elements = 1;
  DType dtype = DType::kFloat32;
  bool in_place = false, by_index = false;
  std::uint64_t seed = 0;
};
std::string describe(const ExchangeCase& exchange);

// By the method, if that can do it between these ranks.
ExchangeCase by(comm::Method method, const ExchangeCase& exchange,
                const comm::Communicator& communicator);

// A random one among `num_ranks`, with up to `max_rows` rows a member.
ExchangeCase random_case(std::uint64_t seed, std::uint64_t index, std::int32_t num_ranks,
                         std::int64_t max_rows);

// One rank's part of it: owns its buffers, which have guard bytes.
class RankExchange {
 public:
  RankExchange(const ExchangeCase& exchange, std::int32_t rank);
  RankExchange(const RankExchange&) = delete;
  RankExchange& operator=(const RankExchange&) = delete;
  const comm::Exchange& exchange() const { return exchange_; }
  std::span<std::byte> workspace() { return workspace_.span(); }
  // Empty if the output has the expected bits and nothing else was written.
  std::string difference() const;
  std::vector<std::byte> output() const;

 private:
  std::vector<std::int32_t> group_;
  std::vector<std::int64_t> counts_, send_counts_;
  std::vector<std::int32_t> row_index_;
  std::vector<std::byte> input_, output_, expected_;
  AlignedBytes workspace_;
  comm::Exchange exchange_{};
  std::size_t output_first_ = 0;  // in `output_`, or in `input_` when in place
  bool in_place_ = false;
  std::string name_;
};

}  // namespace anabatic::testing
