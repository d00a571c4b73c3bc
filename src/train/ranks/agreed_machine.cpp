// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/agreed_machine.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/json_node.h"
#include "train/calibration.h"

namespace anabatic::train {
namespace {

constexpr double kMostPerSecond = 1e18;  // operations or bytes

OrderedJson prices_of(const Machine& machine) {
  return {{"fp32_flops_per_second", machine.device.fp32_flops_per_second},
          {"bf16_flops_per_second", machine.device.bf16_flops_per_second},
          {"int8_ops_per_second", machine.device.int8_ops_per_second},
          {"copy_bytes_per_second", machine.device.copy_bytes_per_second},
          {"efficiency", to_json(machine.efficiency)}};
}

// Kernels are chosen by the instruction sets, and those of another one sum in another order.
void require_same_kernels(const spec::DeviceSpec& first, const spec::DeviceSpec& other,
                          std::int32_t rank) {
  const std::vector<std::string>&expected = first.instruction_sets, &found = other.instruction_sets;
  if (expected == found) return;
  const auto text = [](const std::vector<std::string>& sets) {
    return sets.empty() ? std::string("none") : fmt::format("{}", fmt::join(sets, ", "));
  };
  // Each set needs those before it.
  const auto common = std::mismatch(expected.begin(), expected.end(), found.begin(), found.end());
  const std::string limit =
      common.first == expected.begin() ? std::string("portable") : *(common.first - 1);
  throw InvalidArgument(
      fmt::format("[ranks] rank {}: expected the first rank's instruction sets ({}), got {}: their "
                  "kernels give "
                  "other bits. Start all ranks with ANABATIC_MAX_ISA={} in their environment",
                  rank, text(expected), text(found), limit));
}

}  // namespace

std::string to_text(const Machine& machine) {
  return dump_json(OrderedJson{{"instruction_sets", machine.device.instruction_sets},
                               {"prices", prices_of(machine)},
                               {"process_bytes", machine.limits.process_bytes},
                               {"data_bytes", machine.limits.data_bytes},
                               {"mpi_bytes", machine.limits.mpi_bytes},
                               {"available_bytes", machine.limits.available_bytes}});
}

Machine read_machine(const std::string& text, std::int32_t rank) {
  const std::string place = fmt::format("[ranks] the machine of rank {}", rank);
  const Json json = parse_json_object(text, place);
  const JsonNode top(json, place);
  const JsonNode prices = top.at("prices");
  const auto per_second = [&](const char* name) {
    return prices.at(name).as_number(0, kMostPerSecond);
  };
  const auto bytes = [&](const char* name) { return top.at(name).as_integer(0); };
  Machine machine{.device = {.fp32_flops_per_second = per_second("fp32_flops_per_second"),
                             .bf16_flops_per_second = per_second("bf16_flops_per_second"),
                             .int8_ops_per_second = per_second("int8_ops_per_second"),
                             .copy_bytes_per_second = per_second("copy_bytes_per_second")},
                  .efficiency = read_efficiency(prices.at("efficiency")),
                  .limits = {.process_bytes = bytes("process_bytes"),
                             .data_bytes = bytes("data_bytes"),
                             .mpi_bytes = bytes("mpi_bytes"),
                             .available_bytes = bytes("available_bytes")}};
  machine.device.instruction_sets = top.at("instruction_sets").as_strings();
  return machine;
}

Machine agree_on_machine(StepSums& sums, Machine own) {
  if (sums.num_ranks() == 1) return own;
  ANABATIC_CHECK(sums.begin(0, 0, Verdict::kTellsAll) == Verdict::kTellsAll,
                 "[ranks] the first rank plans for nobody");
  const std::string text = to_text(own);
  const OrderedJson prices = prices_of(own);
  for (std::int32_t rank = 1; rank < sums.num_ranks(); ++rank) {
    const std::string of_rank = sums.bring_text(rank, text);
    if (sums.rank() != 0) continue;
    const Machine other = read_machine(of_rank, rank);
    require_same_kernels(own.device, other.device, rank);
    own = slower_of(std::move(own), other);
  }
  if (prices_of(own) != prices)
    own.price_source = fmt::format("the slowest of {} ranks' machines", sums.num_ranks());
  return own;
}

}  // namespace anabatic::train
