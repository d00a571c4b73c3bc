// SPDX-License-Identifier: Apache-2.0
// An exchange by the library's own collective. The library knows no numbers of exchanges. So each
// member sends the next one of the group a message of ours, whose header has plan, step and number.
// Until the one from its other neighbour has come, an exchange is not complete.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/flight.h"

namespace anabatic::comm {

class CollectiveFlight final : public Flight {
 public:
  // InternalError: workspace too small or not aligned to 64.
  static Flight* make(std::span<std::byte> workspace, const Exchange& exchange,
                      const Header& header, std::int32_t rank);
  static std::int64_t workspace_bytes(std::int64_t group_size);

  void start(Transport& transport) override;
  bool move_piece(Transport& transport) override;
  bool is_complete(Transport& transport) override;
  std::string missing(Transport& transport) override;
  // The neighbour from which nothing has come, if it is that one.
  void add_missing_ranks(Transport& transport, std::vector<std::int32_t>& ranks) override;

 private:
  CollectiveFlight(const Exchange& exchange, const Header& header, std::int32_t rank);

  Outgoing sign_;     // to the next member
  Incoming awaited_;  // from the member before this one
  std::byte sent_{}, received_{};
  std::span<std::byte> room_;
  bool has_ended_ = false;  // the collective
};

}  // namespace anabatic::comm
