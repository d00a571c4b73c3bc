// SPDX-License-Identifier: Apache-2.0
#include "plan/transfers.h"

#include <algorithm>

namespace anabatic::plan {
namespace {

// Steps until what drains from one into the next is as it stays.
constexpr int kSteps = 4;

// What happens before one position, in this order, as in the executor.
struct Points {
  std::vector<std::size_t> writes, reads, written, needed;
};

class Queue {
 public:
  Queue(const Calls& calls, std::span<const Transfer> transfers, const DiskSpeed& disk)
      : calls_(calls),
        transfers_(transfers),
        disk_(disk),
        points_(calls.seconds.size() + 1),
        read_(transfers.size(), 0),
        written_(transfers.size(), 0) {
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      const Transfer& transfer = transfers[i];
      const auto add = [&](std::int32_t position, std::vector<std::size_t> Points::*list) {
        if (position != Transfer::kNever)
          (points_[static_cast<std::size_t>(position)].*list).push_back(i);
      };
      add(transfer.write_at, &Points::writes);
      add(transfer.read_at, &Points::reads);
      add(transfer.written_by, &Points::written);
      add(transfer.needed_at, &Points::needed);
    }
  }

  double waited_in_a_step(std::int64_t num_micro_batches, int num_steps) {
    const std::size_t length = calls_.seconds.size(),
                      update = static_cast<std::size_t>(calls_.before_update);
    for (int step = 0; step < num_steps; ++step) {
      waited_ = 0;
      for (std::int64_t i = 0; i < num_micro_batches; ++i)
        for (std::size_t position = 0; position < update; ++position)
          call(position, i + 1 == num_micro_batches);
      for (std::size_t position = update; position < length; ++position) call(position, true);
      move(points_[length], true);
    }
    return waited_;
  }

 private:
  void call(std::size_t position, bool is_last) {
    move(points_[position], is_last);
    if (is_last || !calls_.only_last[position]) now_ += calls_.seconds[position];
  }

  void move(const Points& points, bool is_last) {
    const auto moves = [&](std::size_t i) { return is_last || !transfers_[i].is_once_a_step; };
    for (const std::size_t i : points.writes)
      if (moves(i)) written_[i] = transfer(i, disk_.written_bytes_per_second);
    for (const std::size_t i : points.reads)
      if (moves(i)) read_[i] = transfer(i, disk_.read_bytes_per_second);
    for (const std::size_t i : points.written) await(written_[i]);
    for (const std::size_t i : points.needed)
      if (moves(i)) await(read_[i]);
  }

  double transfer(std::size_t i, double bytes_per_second) {
    idle_from_ =
        std::max(idle_from_, now_) + static_cast<double>(transfers_[i].bytes) / bytes_per_second;
    return idle_from_;
  }

  void await(double end) {
    if (end <= now_) return;
    waited_ += end - now_;
    now_ = end;
  }

  const Calls& calls_;
  std::span<const Transfer> transfers_;
  DiskSpeed disk_;
  std::vector<Points> points_;          // by position, and after the last
  std::vector<double> read_, written_;  // when a transfer's part ends
  double now_ = 0, idle_from_ = 0, waited_ = 0;
};

std::vector<Transfer> transfers_of(const Plan& plan) {
  std::vector<Transfer> result;
  for (const SwapWindow& window : plan.windows)
    result.push_back(
        {window.bytes, window.end, window.written_by, window.read_at, window.use, true});
  for (const Offload& offload : plan.offloads)
    result.push_back(
        {offload.bytes, offload.write_at, offload.written_by, offload.read_at, offload.needed_at});
  return result;
}

}  // namespace

Calls predicted_calls(const ir::Graph& graph, const Plan& plan, const spec::DeviceSpec& device,
                      const OpEfficiency& efficiency) {
  Calls calls;
  for (const auto& [action, order] : plan.orders) {
    for (const PlannedNode& planned : order) {
      const ir::Node& node = graph.node(planned.node);
      calls.only_last.push_back(node.is_of_update());
      calls.seconds.push_back(planned.is_offloaded
                                  ? 0
                                  : predicted_seconds(graph, node, device, efficiency) +
                                        slicing_seconds(planned.slicing_bytes, device));
    }
    const auto length = static_cast<std::int32_t>(calls.seconds.size());
    if (action == spec::Action::kForward) calls.forward_length = length;
    if (action != spec::Action::kUpdate) calls.before_update = length;
  }
  return calls;
}

double waited_seconds(const Calls& calls, std::span<const Transfer> transfers,
                      const DiskSpeed& disk, std::int64_t num_micro_batches, int num_steps) {
  if (transfers.empty()) return 0;
  return Queue(calls, transfers, disk).waited_in_a_step(num_micro_batches, num_steps);
}

double disk_seconds(const ir::Graph& graph, const Plan& plan, const spec::DeviceSpec& device,
                    const OpEfficiency& efficiency, std::int64_t num_micro_batches) {
  const std::vector<Transfer> transfers = transfers_of(plan);
  if (transfers.empty()) return 0;
  return waited_seconds(predicted_calls(graph, plan, device, efficiency), transfers,
                        efficiency.disk, num_micro_batches, kSteps);
}

double transfer_seconds(const Plan& plan, const DiskSpeed& disk, std::int64_t num_micro_batches) {
  double seconds = 0;
  for (const Transfer& transfer : transfers_of(plan)) {
    const double times = transfer.is_once_a_step ? 1.0 : static_cast<double>(num_micro_batches),
                 bytes = times * static_cast<double>(transfer.bytes);
    seconds += bytes / disk.read_bytes_per_second;
    if (transfer.write_at != Transfer::kNever) seconds += bytes / disk.written_bytes_per_second;
  }
  return seconds;
}

}  // namespace anabatic::plan
