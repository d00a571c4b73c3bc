// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/expert_room.h"

#include <fmt/core.h>

#include <array>
#include <cmath>

#include "passes/ranks/shard_experts.h"

namespace anabatic::train {
namespace {

constexpr double kMore = 1.125;  // than was needed
constexpr double kSteps = 8;     // capacities are multiples of 1 / kSteps

}  // namespace

ExpertRoom::ExpertRoom(const BoundProgram& program) {
  const ir::Graph& graph = program.compiled.graph;
  for (const ir::ValueId output : graph.outputs) {
    const std::string_view name = text(graph.value(output).name);
    if (!name.starts_with(passes::kNeededRows)) continue;
    const ir::Node& map = graph.node(graph.value(output).producer);
    layers_.push_back({.output = std::string(name),
                       .share = static_cast<double>(spec::get_int(map.attributes, "expected")),
                       .room = static_cast<double>(spec::get_int(map.attributes, "rows")),
                       .layer = map.tag.layer});
  }
}

void ExpertRoom::look(const BoundProgram& program) {
  for (const Layer& layer : layers_) {
    const double rows = *program.executor->output(layer.output).as<const std::int32_t>();
    if (rows > layer.room && rows / layer.share > most_.capacity)
      most_ = {rows / layer.share, rows, layer.room, static_cast<double>(layer.layer)};
  }
}

void ExpertRoom::agree(StepSums& sums, std::int64_t step) const {
  if (layers_.empty()) return;
  std::array most{most_.capacity, most_.rows, most_.room, most_.layer};
  sums.take_largest(most);
  if (most[0] == 0) return;
  const double capacity = std::ceil(most[0] * kMore * kSteps) / kSteps;
  throw MoreExpertRoom{
      capacity, fmt::format("step {}: {} rows come to the experts of one rank in layer {}, where "
                            "there is room for {}; the step runs again, with room for {:g} times "
                            "an even share from here on (parallel.expert_capacity)",
                            step, most[1], most[3], most[2], capacity)};
}

}  // namespace anabatic::train
