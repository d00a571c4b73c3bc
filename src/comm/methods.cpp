// SPDX-License-Identifier: Apache-2.0
#include "comm/methods.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "comm/collective_flight.h"
#include "comm/ordered_flight.h"

namespace anabatic::comm {
namespace {

std::string nothing(const ExchangeProblem&) { return {}; }

std::string refusal_of_mpi(const ExchangeProblem& problem) {
  if (problem.group_size == 1) return "a group of one";
  if (adds(problem.kind) && problem.dtype == DType::kBFloat16) return "MPI has no sum of bf16";
  if (problem.by_index) return "MPI sends no rows by an index";
  const std::int64_t most = most_collective_elements(problem.kind);
  if (problem.num_elements > most)
    return fmt::format("{} elements are more than {}", problem.num_elements, most);
  return {};
}

// The first is the one that can do everything.
constexpr std::array kMethods{
    MethodRow{Method::kOrdered, "ordered", nothing, OrderedFlight::workspace_bytes,
              OrderedFlight::make},
    MethodRow{Method::kMpi, "mpi", refusal_of_mpi, CollectiveFlight::workspace_bytes,
              CollectiveFlight::make},
};

}  // namespace

std::span<const MethodRow> methods() { return kMethods; }

const MethodRow& row_of(Method method) {
  const auto row = std::ranges::find(kMethods, method, &MethodRow::method);
  ANABATIC_CHECK(row != kMethods.end(), "[exchange] unknown method {}", static_cast<int>(method));
  return *row;
}

std::string_view to_string(Method method) { return row_of(method).name; }

std::int64_t workspace_bytes(std::int64_t group_size, Method method) {
  return row_of(method).workspace_bytes(group_size);
}

}  // namespace anabatic::comm
