// SPDX-License-Identifier: Apache-2.0
#include "plan/swap_price.h"

#include <algorithm>

namespace anabatic::plan {
namespace {

// Steps until what drains from one into the next is as it stays.
constexpr int kSteps = 4;

// What happens to windows ahead of one position, in this order, as the executor does it.
struct Points {
  std::vector<std::size_t> writes, reads, written, awaited;
};

class Timeline {
 public:
  Timeline(const ir::Graph& graph, const Plan& plan, const spec::DeviceSpec& device,
           const OpEfficiency& efficiency)
      : plan_(plan), disk_(efficiency.disk) {
    for (const auto& [action, order] : plan.orders)
      for (const PlannedNode& planned : order) {
        if (action == spec::Action::kUpdate) ++num_update_;
        call_seconds_.push_back(
            predicted_seconds(graph, graph.node(planned.node), device, efficiency));
      }
    points_.resize(call_seconds_.size() + 1);
    const auto at = [&](std::int32_t position) -> Points& {
      return points_[static_cast<std::size_t>(position)];
    };
    for (std::size_t i = 0; i < plan.windows.size(); ++i) {
      const SwapWindow& window = plan.windows[i];
      at(window.end).writes.push_back(i);
      at(window.read_at).reads.push_back(i);
      at(window.use).awaited.push_back(i);
      if (window.written_by != SwapWindow::kNoPosition) at(window.written_by).written.push_back(i);
    }
    read_.resize(plan.windows.size(), 0);
    written_.resize(plan.windows.size(), 0);
  }

  double waited_in_a_step(std::int64_t num_micro_batches) {
    const std::size_t length = call_seconds_.size(), update = length - num_update_;
    double waited = 0;
    for (int step = 0; step < kSteps; ++step) {
      waited_ = 0;
      for (std::int64_t i = 0; i < num_micro_batches; ++i)
        for (std::size_t position = 0; position < update; ++position)
          call(position, i + 1 == num_micro_batches);
      for (std::size_t position = update; position < length; ++position) call(position, true);
      move(points_[length], true);
      waited = waited_;
    }
    return waited;
  }

 private:
  void call(std::size_t position, bool reads) {
    move(points_[position], reads);
    now_ += call_seconds_[position];
  }

  void move(const Points& points, bool reads) {
    for (const std::size_t window : points.writes)
      written_[window] = transfer(window, disk_.written_bytes_per_second);
    if (reads)
      for (const std::size_t window : points.reads)
        read_[window] = transfer(window, disk_.read_bytes_per_second);
    for (const std::size_t window : points.written) await(written_[window]);
    if (reads)
      for (const std::size_t window : points.awaited) await(read_[window]);
  }

  double transfer(std::size_t window, double bytes_per_second) {
    idle_from_ = std::max(idle_from_, now_) +
                 static_cast<double>(plan_.windows[window].bytes) / bytes_per_second;
    return idle_from_;
  }

  void await(double end) {
    if (end <= now_) return;
    waited_ += end - now_;
    now_ = end;
  }

  const Plan& plan_;
  DiskSpeed disk_;
  std::vector<double> call_seconds_;  // by position
  std::size_t num_update_ = 0;
  std::vector<Points> points_;          // by position, and behind the last
  std::vector<double> read_, written_;  // when a window's transfer ends
  double now_ = 0, idle_from_ = 0, waited_ = 0;
};

}  // namespace

double disk_seconds(const ir::Graph& graph, const Plan& plan, const spec::DeviceSpec& device,
                    const OpEfficiency& efficiency, std::int64_t num_micro_batches) {
  if (plan.windows.empty()) return 0;
  return Timeline(graph, plan, device, efficiency).waited_in_a_step(num_micro_batches);
}

double transfer_seconds(const Plan& plan, const DiskSpeed& disk) {
  std::int64_t bytes = 0;
  for (const SwapWindow& window : plan.windows) bytes += window.bytes;
  return static_cast<double>(bytes) *
         (1 / disk.read_bytes_per_second + 1 / disk.written_bytes_per_second);
}

}  // namespace anabatic::plan
