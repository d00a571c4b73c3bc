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

namespace {

// Who gets which rows of a group: what dispatch_map reads of `routes`.
struct Routes {
  const std::int32_t* offsets;           // [members, experts + 1]
  std::int64_t members, experts, local;  // local: experts of one member
  bool fit;                              // else each member gets as many, for its first expert

  Routes(const TensorView& routes, std::int64_t room)
      : offsets(routes.as<const std::int32_t>()),
        members(rows(routes)),
        experts(columns(routes) - 1),
        local(experts / members),
        fit(needed() <= room) {}

  std::int32_t before(std::int64_t from, std::int64_t expert) const {
    return offsets[from * (experts + 1) + expert];
  }

  // The most rows that a member is to receive.
  std::int32_t needed() const {
    std::int32_t most = 0;
    for (std::int64_t to = 0; to < members; ++to) {
      std::int32_t total = 0;
      for (std::int64_t m = 0; m < members; ++m)
        total += before(m, (to + 1) * local) - before(m, to * local);
      most = std::max(most, total);
    }
    return most;
  }

  // The rows of `from` before the ones that it sends to `to`.
  std::int32_t sent_before(std::int64_t from, std::int64_t to) const {
    return fit ? before(from, to * local)
               : static_cast<std::int32_t>(before(from, experts) * to / members);
  }

  // How many rows `from` sends to `to` before those of its `expert`.
  std::int32_t received_before(std::int64_t from, std::int64_t to, std::int64_t expert) const {
    if (fit) return before(from, to * local + expert) - before(from, to * local);
    return expert == 0 ? 0 : sent_before(from, to + 1) - sent_before(from, to);
  }
};

}  // namespace

// A task places the rows of one member, the last one those beyond them all.
void dispatch_map(const Arguments& args) {
  const std::int64_t num_rows = size(args.outputs[0]),
                     me = spec::get_int(*args.attributes, "member");
  const Routes routes(args.inputs[0], num_rows);
  const std::int64_t members = routes.members, local = routes.local;
  std::int32_t *row_map = args.outputs[0].as<std::int32_t>(),
               *slots = args.outputs[1].as<std::int32_t>(),
               *offsets = args.outputs[2].as<std::int32_t>(),
               *send_counts = args.outputs[3].as<std::int32_t>(),
               *receive_counts = args.outputs[4].as<std::int32_t>();
  *args.outputs[5].as<std::int32_t>() = routes.needed();
  std::fill(offsets, offsets + local + 1, 0);
  for (std::int64_t m = 0; m < members; ++m) {
    send_counts[m] = routes.sent_before(me, m + 1) - routes.sent_before(me, m);
    receive_counts[m] = routes.received_before(m, me, local);
    for (std::int64_t e = 0; e <= local; ++e) offsets[e] += routes.received_before(m, me, e);
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
    const auto count = [&](std::int64_t from, std::int64_t e) {
      return routes.received_before(from, me, e + 1) - routes.received_before(from, me, e);
    };
    std::int32_t row = 0;  // received one
    for (std::int64_t m = 0; m < task; ++m) row += receive_counts[m];
    for (std::int64_t e = 0; e < local; ++e) {
      std::int32_t p = offsets[e];
      for (std::int64_t m = 0; m < task; ++m) p += count(m, e);
      for (const std::int32_t end = row + count(task, e); row < end; ++row, ++p) {
        row_map[p] = row;
        slots[row] = p;
      }
    }
  });
}

}  // namespace anabatic::kernels::cpu
