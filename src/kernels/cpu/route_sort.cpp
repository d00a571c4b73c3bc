// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/rounding.h"
#include "kernels/cpu/scalar_rows.h"

namespace anabatic::kernels::cpu {
namespace {

constexpr std::int64_t kSlotBlock = 4096;

}  // namespace

// Workspace: how many slots each block gives to each expert, then where they start: [blocks, E].
std::int64_t route_sort_workspace_bytes(const spec::Problem& problem) {
  return ceil_div(problem.inputs[0].num_elements(), kSlotBlock) *
         spec::get_int(*problem.attributes, "num_experts") * std::int64_t{sizeof(std::int32_t)};
}

void route_sort(const Arguments& args) {
  const std::int32_t* experts = args.inputs[0].as<const std::int32_t>();
  std::int32_t *row_map = args.outputs[0].as<std::int32_t>(),
               *slots = args.outputs[1].as<std::int32_t>(),
               *offsets = args.outputs[2].as<std::int32_t>();
  const std::int64_t num_slots = size(args.inputs[0]), num_blocks = ceil_div(num_slots, kSlotBlock),
                     num_experts = spec::get_int(*args.attributes, "num_experts");
  auto* places = reinterpret_cast<std::int32_t*>(args.workspace);

  args.launch.team->for_tasks(num_blocks, [&](std::int64_t block) {
    std::int32_t* counts = places + block * num_experts;
    std::fill(counts, counts + num_experts, 0);
    const std::int64_t end = std::min(num_slots, (block + 1) * kSlotBlock);
    for (std::int64_t i = block * kSlotBlock; i < end; ++i) {
      require_index("route_sort", experts[i], num_experts);
      ++counts[experts[i]];
    }
  });
  std::int32_t place = 0;
  for (std::int64_t e = 0; e < num_experts; ++e) {
    offsets[e] = place;
    for (std::int64_t block = 0; block < num_blocks; ++block) {
      const std::int32_t count = places[block * num_experts + e];
      places[block * num_experts + e] = place;
      place += count;
    }
  }
  offsets[num_experts] = place;
  args.launch.team->for_tasks(num_blocks, [&](std::int64_t block) {
    std::int32_t* next = places + block * num_experts;
    const std::int64_t end = std::min(num_slots, (block + 1) * kSlotBlock);
    for (std::int64_t i = block * kSlotBlock; i < end; ++i) {
      const std::int32_t p = next[experts[i]]++;
      row_map[p] = static_cast<std::int32_t>(i);
      slots[i] = p;
    }
  });
}

}  // namespace anabatic::kernels::cpu
