// SPDX-License-Identifier: Apache-2.0
#include "analysis/cost_summary.h"

#include "base/error.h"
#include "base/text.h"

namespace anabatic::analysis {
namespace {

void add(ir::Cost& sum, const ir::Cost& cost) {
  sum.flops += cost.flops;
  sum.bytes_read += cost.bytes_read;
  sum.bytes_written += cost.bytes_written;
}

std::vector<TensorType> types_of(const ir::Graph& graph, const std::vector<ir::ValueId>& values) {
  std::vector<TensorType> types;
  for (const ir::ValueId value : values) types.push_back(graph.value(value).type);
  return types;
}

std::string line(std::string_view group, std::string_view key, const ir::Cost& cost) {
  return fmt::format("{:<8} {:<32} {:>12.6f} GFLOP  reads {:>10}  writes {:>10}\n", group, key,
                     static_cast<double>(cost.flops) * 1e-9, format_bytes(cost.bytes_read),
                     format_bytes(cost.bytes_written));
}

}  // namespace

CostSummary summarize_cost(const ir::Graph& graph) {
  CostSummary summary;
  for (const ir::Node& node : graph.nodes) {
    const ir::Cost cost =
        node.op->cost(types_of(graph, node.inputs), types_of(graph, node.outputs), node.attributes);
    add(summary.total, cost);
    add(summary.by_phase[std::string(to_string(node.tag.phase))], cost);
    add(summary.by_segment[std::string(text(node.tag.segment))], cost);
    add(summary.by_op[std::string(node.op->name)], cost);
  }
  return summary;
}

std::string to_string(const CostSummary& summary) {
  std::string out;
  for (const auto& [key, cost] : summary.by_phase) out += line("phase", key, cost);
  for (const auto& [key, cost] : summary.by_segment) out += line("segment", key, cost);
  for (const auto& [key, cost] : summary.by_op) out += line("op", key, cost);
  return out + line("total", "", summary.total);
}

}  // namespace anabatic::analysis
