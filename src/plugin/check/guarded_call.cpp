// SPDX-License-Identifier: Apache-2.0
#include "plugin/check/guarded_call.h"

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace anabatic::plugin::check {
namespace {

constexpr std::int64_t kWorkspaceAlignment = 64;

}  // namespace

device::ThreadTeam* Teams::of(int threads) {
  if (threads == 1) return nullptr;
  auto& team = teams_[threads];
  if (!team) team = std::make_unique<device::ThreadTeam>(threads, device::CpuLimits{.cores = {0}});
  return team.get();
}

Operands run_guarded(const GuardedCall& what, const Operands& inputs, Operands outputs,
                     const Setting& setting, std::string_view note, Teams& teams,
                     Reporter& reporter) {
  const std::string_view function = what.place.function;
  std::deque<GuardedMemory> memory;
  std::vector<Watched> watched;
  const auto guard = [&](std::int64_t bytes, std::string name, std::int64_t alignment) {
    GuardedMemory& made = memory.emplace_back(bytes, setting.side, setting.poison, alignment);
    watched.push_back({&made, std::move(name)});
    return made.data();
  };
  const auto is_overwritten = [&](std::size_t input) {
    return std::find(what.in_place.begin(), what.in_place.end(), static_cast<int>(input)) !=
           what.in_place.end();
  };
  PluginCall call(what.place, what.attributes, teams.of(setting.threads));
  std::vector<std::byte*> input_places;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    std::byte* data = nullptr;
    if (inputs[i].is_given) {
      data = guard(inputs[i].type.num_bytes(), fmt::format("input {} ({})", i, inputs[i].name), 1);
      std::copy(inputs[i].bytes.begin(), inputs[i].bytes.end(), data);
      if (!is_overwritten(i)) memory.back().make_read_only();
    }
    call.add_input(inputs[i].type, data);
    input_places.push_back(data);
  }
  std::vector<const std::byte*> places;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    std::byte* data = nullptr;
    if (i < what.in_place.size() && what.in_place[i] >= 0)
      data = input_places[static_cast<std::size_t>(what.in_place[i])];
    else if (outputs[i].is_given)
      data =
          guard(outputs[i].type.num_bytes(), fmt::format("output {} ({})", i, outputs[i].name), 1);
    call.add_output(outputs[i].type, data);
    places.push_back(data);
  }
  if (what.workspace_bytes > 0)
    call.set_workspace(guard(what.workspace_bytes, "the workspace", kWorkspaceAlignment),
                       what.workspace_bytes);
  reporter.enter(function, note, watched);
  const std::int32_t result = call.run(what.function);
  reporter.enter(function, note, {});
  if (result != 0 || !call.failure().empty())
    reporter.fail("error", call.failure().empty()
                               ? fmt::format("failed: it returned {} and gave no reason", result)
                               : fmt::format("failed: {}", call.failure()));
  for (const Watched& one : watched)
    if (const auto offset = one.memory->changed_around(); offset)
      reporter.fail("bounds", *offset < 0 ? fmt::format("writes {} bytes before the begin of {}",
                                                        -*offset, one.name)
                                          : fmt::format("writes to byte {} of {}, which has {}",
                                                        *offset, one.name, one.memory->bytes()));
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].is_given)
      outputs[i].bytes.assign(places[i], places[i] + outputs[i].type.num_bytes());
  return outputs;
}

}  // namespace anabatic::plugin::check
