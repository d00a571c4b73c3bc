// SPDX-License-Identifier: Apache-2.0
// The table of what can do an exchange: a row is chosen before anything runs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "comm/exchange.h"
#include "comm/flight.h"
#include "comm/message.h"
#include "tensor/dtype.h"

namespace anabatic::comm {

// What is known of an exchange before it runs, the same on all ranks.
struct ExchangeProblem {
  ExchangeKind kind{};
  std::int64_t group_size = 1;
  DType dtype = DType::kFloat32;  // of sums
  std::int64_t num_elements = 0;  // of sums; else the most rows
  bool by_index = false;          // rows are sent from where an index says
};

struct MethodRow {
  Method method{};
  std::string_view name;
  // Why it cannot do this; empty: it can.
  std::string (*refusal)(const ExchangeProblem&);
  // Bytes for an exchange in a group of so many.
  std::int64_t (*workspace_bytes)(std::int64_t group_size);
  // Makes the flight in its workspace.
  Flight* (*make)(std::span<std::byte> workspace, const Exchange&, const Header&,
                  std::int32_t rank);
};

std::span<const MethodRow> methods();
const MethodRow& row_of(Method method);

std::string_view to_string(Method method);  // "ordered"

}  // namespace anabatic::comm
