// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "base/error.h"
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

// A task places the rows of one member, the last one those beyond them all.
void dispatch_map(const Arguments& args) {
  const TensorView& routes = args.inputs[0];
  const std::int64_t members = rows(routes), stride = columns(routes),
                     local = (stride - 1) / members, num_rows = size(args.outputs[0]),
                     me = spec::get_int(*args.attributes, "member");
  std::int32_t *row_map = args.outputs[0].as<std::int32_t>(),
               *slots = args.outputs[1].as<std::int32_t>(),
               *offsets = args.outputs[2].as<std::int32_t>(),
               *send_counts = args.outputs[3].as<std::int32_t>(),
               *receive_counts = args.outputs[4].as<std::int32_t>();
  const auto* of_me = routes.as<const std::int32_t>() + me * stride;
  // What the member's own experts get from member m: [first, last] of these.
  const auto from = [&](std::int64_t m) {
    return routes.as<const std::int32_t>() + m * stride + me * local;
  };
  std::fill(offsets, offsets + local + 1, 0);
  for (std::int64_t m = 0; m < members; ++m) {
    send_counts[m] = of_me[(m + 1) * local] - of_me[m * local];
    receive_counts[m] = from(m)[local] - from(m)[0];
    for (std::int64_t e = 0; e <= local; ++e) offsets[e] += from(m)[e] - from(m)[0];
  }
  const std::int32_t total = offsets[local];
  ANABATIC_REQUIRE(total <= num_rows, "[dispatch_map] expected at most {} rows, got {}", num_rows,
                   total);
  args.launch.team->for_tasks(members + 1, [&](std::int64_t task) {
    if (task == members) {
      std::iota(row_map + total, row_map + num_rows, total);
      std::iota(slots + total, slots + num_rows, total);
      return;
    }
    std::int32_t row = 0;  // received one
    for (std::int64_t m = 0; m < task; ++m) row += receive_counts[m];
    for (std::int64_t e = 0; e < local; ++e) {
      std::int32_t p = offsets[e];
      for (std::int64_t m = 0; m < task; ++m) p += from(m)[e + 1] - from(m)[e];
      for (const std::int32_t end = row + from(task)[e + 1] - from(task)[e]; row < end;
           ++row, ++p) {
        row_map[p] = row;
        slots[row] = p;
      }
    }
  });
}

}  // namespace anabatic::kernels::cpu
