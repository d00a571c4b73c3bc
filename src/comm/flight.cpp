// SPDX-License-Identifier: Apache-2.0
#include "comm/flight.h"

#include <algorithm>

#include "base/error.h"

namespace anabatic::comm {

Flight::Flight(const Exchange& exchange, const Header& header, std::int32_t rank)
    : exchange_(exchange),
      header_(header),
      rank_(rank),
      me_(static_cast<std::size_t>(std::find(exchange.group.begin(), exchange.group.end(), rank) -
                                   exchange.group.begin())) {
  header_.kind = exchange.kind;
}

bool Flight::poll(Transport& transport, Incoming& message) const {
  if (message.peer != rank_) {
    try {
      transport.poll(message);
    } catch (const CommError& error) {
      throw CommError(fmt::format("{}, which is {}", error.what(), describe()));
    }
  }
  return message.arrived > message.used;
}

std::string Flight::describe() const {
  return fmt::format("exchange {} of step {} ({}{}{})", header_.number, header_.step,
                     to_string(exchange_.kind), exchange_.label.empty() ? "" : " of ",
                     exchange_.label);
}

}  // namespace anabatic::comm
