// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/planned_exchanges.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "comm/methods.h"
#include "runtime/verify_schedule.h"

namespace anabatic::train {
namespace {

// Bytes that a group of n sends for a tensor of so many bytes, whatever the parts of its members.
std::int64_t bytes_of_group(comm::ExchangeKind kind, std::int64_t bytes, std::int64_t n) {
  using enum comm::ExchangeKind;
  switch (kind) {
    case kAllReduce:  // parts, and sums of parts
      return 2 * (n - 1) * bytes;
    case kAllGather:
    case kReduceScatter:
    case kBroadcast:
    case kSend:
      return (n - 1) * bytes;
    case kExchangeRows:  // as if each sent as many rows to every member; it keeps its own
      return (n - 1) * bytes;
  }
  ANABATIC_CHECK(false, "[exchange] unknown kind {}", static_cast<int>(kind));
}

// An exchange of rows counts as many as both sides have room for: those of a rank's tokens, for the
// other side has room for the most that may come.
std::int64_t bytes_of(const runtime::Exchange& exchange) {
  const TensorType& received = exchange.buffer.type;
  if (!exchange.rows) return received.num_bytes();
  const TensorType& sent =
      exchange.rows->row_map ? exchange.rows->row_map->type : exchange.rows->input.type;
  return std::min(sent.dim(0), received.dim(0)) * received.dim(-1) * size_bytes(received.dtype);
}

std::string name_of(const runtime::Program& program, const runtime::Exchange& exchange) {
  const auto state = static_cast<std::size_t>(exchange.buffer.state);
  if (exchange.buffer.state < 0) return exchange.label;
  return std::string(text(exchange.buffer.arena == spec::Arena::kPersistent
                              ? program.states.at(state).name
                              : program.gradients.at(state)));
}

}  // namespace

std::vector<PlannedExchange> planned_exchanges(const lower::Compiled& training,
                                               const spec::Mesh& mesh,
                                               std::int64_t num_micro_batches) {
  const runtime::Program& program = training.program;
  std::vector<PlannedExchange> result;
  for (const runtime::Exchange& exchange : program.exchanges) {
    const std::int64_t bytes = bytes_of(exchange);
    const std::int32_t num_ranks = mesh.size(exchange.group);
    result.push_back({.name = name_of(program, exchange),
                      .kind = exchange.kind,
                      .method = exchange.method,
                      .reason = exchange.reason,
                      .axes = exchange.group,
                      .num_ranks = num_ranks,
                      .bytes = bytes,
                      .sent_bytes = bytes_of_group(exchange.kind, bytes, num_ranks) / num_ranks});
  }
  for (const spec::StepEntry& entry : runtime::schedule_of(program, num_micro_batches))
    for (const runtime::ExchangePoint& point : program.variants.at(entry.action)
                                                   .at(static_cast<std::size_t>(entry.variant))
                                                   .exchange_points)
      if (point.step == runtime::ExchangeStep::kPost)
        ++result[static_cast<std::size_t>(point.exchange)].count;
  return result;
}

std::string over_layers(const std::string& name) {
  constexpr std::string_view kLayers = "layers.";
  const auto at = name.find(kLayers);
  if (at == std::string::npos) return name;
  const auto number = at + kLayers.size(), end = name.find_first_not_of("0123456789", number);
  return end == std::string::npos ? name : name.substr(0, number) + "*" + name.substr(end);
}

std::string to_string(const std::vector<PlannedExchange>& exchanges) {
  struct Row {
    PlannedExchange one;
    std::int64_t sent_bytes = 0;  // of all, a step
  };
  std::vector<Row> rows;
  for (const PlannedExchange& exchange : exchanges) {
    const std::string name = over_layers(exchange.name);
    auto row = std::ranges::find_if(rows, [&](const Row& known) {
      const PlannedExchange& one = known.one;
      return one.name == name && one.kind == exchange.kind && one.axes == exchange.axes &&
             one.bytes == exchange.bytes && one.method == exchange.method &&
             one.reason == exchange.reason;
    });
    if (row == rows.end()) {
      row = rows.insert(row, {.one = exchange});
      row->one.name = name;
      row->one.count = 0;
    }
    row->one.count += exchange.count;
    row->sent_bytes += exchange.count * exchange.sent_bytes;
  }
  std::string text = fmt::format("exchanges    of a step: {} sent by each rank\n",
                                 format_bytes(sent_bytes(exchanges)));
  for (const auto& [one, bytes] : rows)
    text += fmt::format("  {:<44} {:<14} {:>4} x {:>10} over {} ({}): {} sent; {}: {}\n", one.name,
                        to_string(one.kind), one.count, format_bytes(one.bytes),
                        spec::to_string(one.axes), one.num_ranks, format_bytes(bytes),
                        comm::to_string(one.method), one.reason);
  return text;
}

std::int64_t sent_bytes(const std::vector<PlannedExchange>& exchanges) {
  std::int64_t bytes = 0;
  for (const PlannedExchange& exchange : exchanges) bytes += exchange.count * exchange.sent_bytes;
  return bytes;
}

}  // namespace anabatic::train
