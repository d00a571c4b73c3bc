// SPDX-License-Identifier: Apache-2.0
#include "plan/offload.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "analysis/rebuild.h"
#include "ir/op_schema.h"
#include "plan/swap.h"

namespace anabatic::plan {
namespace {

// The factor on a transfer's time that is left to the disk.
constexpr double kPatience = 4.0 / 3.0;
// Passes over the bytes that a call does not make itself: two transfers, and a checksum at each.
constexpr double kTransferPasses = 2, kSumPasses = 2;

// The begin of each position, and the end of the last.
std::vector<double> starts_of(const Calls& calls) {
  std::vector<double> starts(calls.seconds.size() + 1, 0);
  std::partial_sum(calls.seconds.begin(), calls.seconds.end(), starts.begin() + 1);
  return starts;
}

// Most parameters that are queued before their readers: those of the widest call, and one more.
constexpr std::size_t kMostAhead = 4;

// Keys of offloads by their nodes.
std::map<ir::NodeId, std::string> keys_of(const ir::Graph& graph,
                                          std::span<const Offload> offloads) {
  std::map<ir::ValueId, std::string> by_value;
  const analysis::Rebuilder rebuilder(graph);
  for (const analysis::SavedValue& saved : rebuilder.saved()) by_value[saved.value] = saved.key;
  std::vector<const Offload*> by_node;
  for (const Offload& offload : offloads) by_node.push_back(&offload);
  std::sort(by_node.begin(), by_node.end(),
            [](const Offload* a, const Offload* b) { return a->reload < b->reload; });
  std::map<ir::NodeId, std::string> keys;
  std::map<std::int32_t, int> num_readers;
  for (const Offload* offload : by_node)
    keys[offload->reload] =
        offload->is_of_state()
            ? fmt::format("{}@{}",
                          text(graph.states[static_cast<std::size_t>(offload->state)].name),
                          num_readers[offload->state]++)
            : by_value.at(graph.node(offload->reload).inputs[0]);
  return keys;
}

// A node that ends before write_at may not take its bytes over, so it has them at write_at.
std::int32_t last_written_by(const Offload& offload) {
  return std::max(offload.needed_at, offload.write_at + 1);
}

bool can_move(const Offload& offload, const spec::OffloadSpan& span) {
  if (offload.is_of_state()) return span.read_at >= 0 && span.read_at <= offload.needed_at;
  return span.written_by > offload.write_at && span.written_by <= last_written_by(offload) &&
         span.read_at >= offload.write_at && span.read_at <= offload.needed_at;
}

// False where some offload has no span, or none that it could move in.
bool take(const spec::OffloadSpans& spans, const ir::Graph& graph, std::span<Offload> offloads) {
  if (spans.empty()) return false;
  const auto keys = keys_of(graph, offloads);
  for (Offload& offload : offloads) {
    const auto span = spans.find(keys.at(offload.reload));
    if (span == spans.end() || !can_move(offload, span->second)) return false;
    if (!offload.is_of_state()) offload.written_by = span->second.written_by;
    offload.read_at = span->second.read_at;
  }
  return true;
}

}  // namespace

double schedule(std::span<Offload> offloads, const Calls& calls, const DiskSpeed& disk) {
  if (offloads.empty()) return 0;
  const std::vector<double> starts = starts_of(calls);
  const auto start = [&](std::int32_t position) {
    return starts[static_cast<std::size_t>(position)];
  };
  std::vector<Offload*> by_write;
  for (Offload& offload : offloads)
    if (!offload.is_of_state()) by_write.push_back(&offload);
  std::stable_sort(by_write.begin(), by_write.end(),
                   [](const Offload* a, const Offload* b) { return a->write_at < b->write_at; });
  double now = 0;
  for (Offload* offload : by_write) {
    now = std::max(now, start(offload->write_at)) +
          kPatience * static_cast<double>(offload->bytes) / disk.written_bytes_per_second;
    const auto after = std::lower_bound(starts.begin(), starts.end(), now);
    offload->written_by = std::clamp(static_cast<std::int32_t>(after - starts.begin()),
                                     offload->write_at + 1, last_written_by(*offload));
  }
  now = starts.back();
  for (std::size_t i = offloads.size(); i-- > 0;) {
    Offload& offload = offloads[i];
    now = std::min(now, start(offload.needed_at)) -
          kPatience * static_cast<double>(offload.bytes) / disk.read_bytes_per_second;
    const auto after = std::upper_bound(starts.begin(), starts.end(), now);
    const auto latest = static_cast<std::int32_t>(after - starts.begin()) - 1;
    offload.read_at = std::clamp(latest, std::max(offload.write_at, 0), offload.needed_at);
  }
  std::vector<Offload*> copies;
  for (Offload& offload : offloads)
    if (offload.is_of_state()) copies.push_back(&offload);
  for (std::size_t i = kMostAhead; i < copies.size(); ++i)
    copies[i]->read_at = std::max(copies[i]->read_at, copies[i - kMostAhead]->needed_at);
  std::vector<Transfer> transfers;
  for (const Offload& offload : offloads)
    transfers.push_back(
        {offload.bytes, offload.write_at, offload.written_by, offload.read_at, offload.needed_at});
  return waited_seconds(calls, transfers, disk, 1, 1);
}

std::vector<Offload> find_offloads(const ir::Graph& graph, const std::vector<ir::NodeId>& order,
                                   const Calls& calls, const DiskSpeed& disk,
                                   const spec::OffloadSpans& spans) {
  std::vector<std::int32_t> used_until(graph.values.size(), 0),
      state_of_value(graph.values.size(), -1);
  for (std::size_t i = 0; i < graph.states.size(); ++i)
    state_of_value[index(graph.states[i].before)] = static_cast<std::int32_t>(i);
  std::vector<Offload> offloads;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const ir::Node& node = graph.node(order[i]);
    const auto position = static_cast<std::int32_t>(i);
    if (node.op->name == "reload" && state_of_value[index(node.inputs[0])] >= 0) {
      offloads.push_back({.reload = order[i],
                          .bytes = align_to_sectors(graph.value(node.inputs[0]).type.num_bytes()),
                          .state = state_of_value[index(node.inputs[0])],
                          .needed_at = position});
      continue;
    }
    if (position < calls.forward_length) {
      for (const auto* list : {&node.inputs, &node.outputs})
        for (const ir::ValueId value : *list) used_until[index(value)] = position + 1;
      continue;
    }
    if (node.op->name != "reload") continue;
    const std::int32_t write_at = used_until[index(node.inputs[0])];
    const std::int64_t bytes = graph.value(node.inputs[0]).type.num_bytes();
    if (write_at == 0 || bytes == 0) continue;
    offloads.push_back({.reload = order[i],
                        .bytes = align_to_sectors(bytes),
                        .write_at = write_at,
                        .needed_at = position});
  }
  if (offloads.empty() || take(spans, graph, offloads)) return offloads;
  schedule(offloads, calls, disk);
  return offloads;
}

spec::OffloadSpans offload_spans(const ir::Graph& graph, const Plan& plan) {
  spec::OffloadSpans spans;
  if (plan.offloads.empty()) return spans;
  const auto keys = keys_of(graph, plan.offloads);
  for (const Offload& offload : plan.offloads)
    spans[keys.at(offload.reload)] = {std::max(offload.written_by, 0), offload.read_at};
  return spans;
}

std::vector<ParameterOnDisk> reloaded_parameters(const ir::Graph& graph) {
  std::vector<int> num_copies(graph.values.size(), 0);
  for (const ir::Node& node : graph.nodes)
    if (node.op->name == "reload") ++num_copies[index(node.inputs[0])];
  std::vector<ParameterOnDisk> parameters;
  for (const ir::State& state : graph.states)
    if (const int count = num_copies[index(state.before)]; count > 0)
      parameters.push_back(
          {std::string(text(state.name)), graph.value(state.before).type.num_bytes(), count});
  std::stable_sort(parameters.begin(), parameters.end(),
                   [](const auto& a, const auto& b) { return a.num_copies > b.num_copies; });
  return parameters;
}

double offload_seconds(std::int64_t bytes, const spec::DeviceSpec& device) {
  return (kTransferPasses + kSumPasses) * static_cast<double>(bytes) / device.copy_bytes_per_second;
}

double offload_seconds(const Offload& offload, const spec::DeviceSpec& device) {
  return (offload.is_of_state() ? 0.5 : 1) * offload_seconds(offload.bytes, device);
}

double window_seconds(const SwapWindow& window, const spec::DeviceSpec& device) {
  return kTransferPasses * static_cast<double>(window.bytes) / device.copy_bytes_per_second;
}

}  // namespace anabatic::plan
