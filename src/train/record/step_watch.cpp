// SPDX-License-Identifier: Apache-2.0
#include "train/record/step_watch.h"

#include <algorithm>
#include <map>

#include "base/rounding.h"
#include "device/memory.h"
#include "lower/call_info.h"

namespace anabatic::train {
namespace {

std::int64_t num_positions_of(const plan::Plan& plan) {
  std::int64_t count = 0;
  for (const auto& [action, order] : plan.orders) count += static_cast<std::int64_t>(order.size());
  return count;
}

}  // namespace

StepWatch::StepWatch(const BoundProgram& program)
    : program_(&program), num_positions_(num_positions_of(program.compiled.plan)) {
  std::map<std::string, std::int32_t> numbers;
  for (const lower::CallInfo& info : lower::call_infos(program.compiled)) {
    const auto [found, is_new] = numbers.try_emplace(std::string(text(info.node->tag.segment)),
                                                     static_cast<std::int32_t>(numbers.size()));
    if (is_new) segments_.push_back(found->first);
    segment_of_call_.push_back(found->second);
    const bool is_placed = info.layout == 0 && !info.is_zero_fill;
    position_of_call_.push_back(is_placed ? info.position : -1);
  }
  nanoseconds_.resize(segments_.size());
  const auto most = static_cast<std::int64_t>(kMostLooks);
  stride_ = std::max<std::int64_t>(1, ceil_div(num_positions_, most));
  resident_.resize(static_cast<std::size_t>(num_positions_ / stride_ + 1));
}

void StepWatch::begin(bool with_memory) {
  with_memory_ = with_memory;
  std::fill(nanoseconds_.begin(), nanoseconds_.end(), 0);
  std::fill(resident_.begin(), resident_.end(), 0);
  program_->executor->observe({.on_call = on_call, .context = this});
  begin_ = device::wall_nanoseconds();
}

void StepWatch::end() {
  wall_ = device::wall_nanoseconds() - begin_;
  program_->executor->observe({});
}

std::vector<StepWatch::Look> StepWatch::looks() const {
  std::vector<Look> looks;
  for (std::size_t i = 0; i < resident_.size(); ++i)
    if (resident_[i] > 0) looks.push_back({static_cast<std::int64_t>(i) * stride_, resident_[i]});
  return looks;
}

void StepWatch::on_call(void* context, const runtime::CallEvent& event) {
  auto& watch = *static_cast<StepWatch*>(context);
  const auto index =
      static_cast<std::size_t>(&event.call - watch.program_->compiled.program.calls.data());
  watch.nanoseconds_[static_cast<std::size_t>(watch.segment_of_call_[index])] += event.nanoseconds;
  const std::int64_t position = watch.position_of_call_[index];
  if (watch.with_memory_ && position >= 0 && position % watch.stride_ == 0)
    watch.resident_[static_cast<std::size_t>(position / watch.stride_)] =
        device::current_resident_bytes();
}

}  // namespace anabatic::train
