// SPDX-License-Identifier: Apache-2.0
#include "train/record/step_watch.h"

#include <algorithm>
#include <functional>
#include <map>

#include "base/error.h"
#include "device/memory.h"
#include "lower/call_info.h"

namespace anabatic::train {
namespace {

// Where each action begins in forward ++ backward ++ update.
std::map<spec::Action, std::int64_t> begins_of(const plan::Plan& plan, std::int64_t& end) {
  std::map<spec::Action, std::int64_t> begins;
  end = 0;
  for (const auto& [action, order] : plan.orders) {
    begins[action] = end;
    end += static_cast<std::int64_t>(order.size());
  }
  return begins;
}

}  // namespace

StepWatch::StepWatch(const BoundProgram& program) : program_(&program) {
  const auto begins = begins_of(program.compiled.plan, num_positions_);
  std::map<std::string, std::int32_t> numbers;
  for (const lower::ProgramPart& part : lower::parts_of(program.compiled)) {
    add_part(part.calls->data(), part.calls->size());
    for (const lower::CallInfo& info : part.infos) {
      const auto [found, is_new] = numbers.try_emplace(std::string(text(info.node->tag.segment)),
                                                       static_cast<std::int32_t>(numbers.size()));
      if (is_new) segments_.push_back(found->first);
      segment_of_call_.push_back(found->second);
      const bool is_placed = !part.is_first_apart && !info.is_zero_fill;
      position_of_call_.push_back(
          is_placed ? static_cast<std::int32_t>(begins.at(part.action) +
                                                static_cast<std::int64_t>(info.position))
                    : -1);
    }
  }
  nanoseconds_.resize(segments_.size());
  const auto most = static_cast<std::int64_t>(kMostLooks);
  stride_ = std::max<std::int64_t>(1, (num_positions_ + most - 1) / most);
  resident_.resize(static_cast<std::size_t>(num_positions_ / stride_ + 1));
}

void StepWatch::add_part(const runtime::Call* begin, std::size_t size) {
  const std::size_t before = parts_.empty() ? 0 : parts_.back().before + parts_.back().size;
  parts_.push_back({begin, size, before});
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

std::size_t StepWatch::index_of(const runtime::Call& call) const {
  const std::less<> is_below;  // of pointers into different arrays too
  for (const Part& part : parts_)
    if (!is_below(&call, part.begin) && is_below(&call, part.begin + part.size))
      return part.before + static_cast<std::size_t>(&call - part.begin);
  ANABATIC_CHECK(false, "[train] {} is no call of the program", call.label);
  return 0;
}

void StepWatch::on_call(void* context, const runtime::CallEvent& event) {
  auto& watch = *static_cast<StepWatch*>(context);
  const std::size_t index = watch.index_of(event.call);
  watch.nanoseconds_[static_cast<std::size_t>(watch.segment_of_call_[index])] += event.nanoseconds;
  const std::int64_t position = watch.position_of_call_[index];
  if (watch.with_memory_ && position >= 0 && position % watch.stride_ == 0)
    watch.resident_[static_cast<std::size_t>(position / watch.stride_)] =
        device::current_resident_bytes();
}

}  // namespace anabatic::train
