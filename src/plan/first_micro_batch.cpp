// SPDX-License-Identifier: Apache-2.0
#include "plan/first_micro_batch.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "plan/offsets.h"

namespace anabatic::plan {
namespace {

// Both arenas as one line of bytes: the frame, a wall that nothing crosses, the gradients.
class Line {
 public:
  Line(std::int64_t frame_bytes, std::int64_t gradient_bytes, std::int32_t length)
      : frame_bytes_(align_bytes(frame_bytes)),
        end_(gradients_begin() + gradient_bytes),
        length_(length),
        fixed_{{{0, length}, frame_bytes_, kAlignmentBytes}} {}

  // From its first contribution on, beyond the micro-batch.
  void add_gradient(const PlannedBuffer& buffer) {
    fixed_.push_back({{buffer.lifetime.begin, length_},
                      gradients_begin() + buffer.offset,
                      align_bytes(buffer.bytes)});
  }
  // Adds a buffer that may be in either arena: place() writes `arena` and `offset`.
  void add(Lifetime lifetime, std::int64_t bytes, spec::Arena& arena, std::int64_t& offset) {
    items_.push_back({lifetime, align_bytes(bytes)});
    places_.push_back({&arena, &offset});
  }

  // Whether there is room for all of them.
  bool place() {
    const std::vector<std::size_t> by_size = order_by_size(items_);
    Placement placement = place_in_order(items_, by_end(by_size), nullptr, fixed_);
    if (placement.bytes > end_) placement = place_in_order(items_, by_size, nullptr, fixed_);
    if (placement.bytes > end_) return false;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const bool is_in_frame = placement.offsets[i] < frame_bytes_ || items_[i].bytes == 0;
      *places_[i].arena = is_in_frame ? spec::Arena::kFrame : spec::Arena::kGradient;
      *places_[i].offset = placement.offsets[i] - (is_in_frame ? 0 : gradients_begin());
    }
    return true;
  }

 private:
  // Buffers that live longest are placed first, in the frame: at the end of the backward, gradients
  // fill all other bytes.
  std::vector<std::size_t> by_end(std::vector<std::size_t> order) const {
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return items_[a].lifetime.end > items_[b].lifetime.end;
    });
    return order;
  }

  std::int64_t gradients_begin() const { return frame_bytes_ + kAlignmentBytes; }

  std::int64_t frame_bytes_, end_;
  std::int32_t length_;
  std::vector<FixedBytes> fixed_;
  struct Place {
    spec::Arena* arena;
    std::int64_t* offset;
  };
  std::vector<LiveBytes> items_{};
  std::vector<Place> places_{};  // of the items
};

}  // namespace

Plan with_gradients_in_frame(Plan plan) {
  std::int32_t length = 0;
  for (const auto& [action, order] : plan.orders) length += static_cast<std::int32_t>(order.size());
  for (PlannedBuffer& buffer : plan.buffers) {
    if (buffer.arena != spec::Arena::kGradient) continue;
    buffer.arena = spec::Arena::kFrame;
    buffer.lifetime.end = length;
  }
  return plan;
}

std::optional<Plan> plan_among_gradients(const ir::Graph& graph, const Plan& plan,
                                         std::int64_t frame_bytes) {
  ANABATIC_CHECK(
      plan.places == spec::kEveryPlace && plan.windows.empty() && plan.offloads.empty(),
      "[plan] expected several micro-batches and no states on disk for a separate first one");
  Plan result = plan;
  result.places = {spec::Place::kFirst};
  result.frame_bytes = align_bytes(frame_bytes);
  std::vector<PlannedNode*> nodes;
  for (auto& [action, order] : result.orders)
    for (PlannedNode& planned : order) nodes.push_back(&planned);
  Line line(frame_bytes, plan.gradient_bytes, static_cast<std::int32_t>(nodes.size()));
  for (PlannedBuffer& buffer : result.buffers) {
    if (buffer.arena == spec::Arena::kGradient) line.add_gradient(buffer);
    if (buffer.arena == spec::Arena::kFrame)
      line.add(buffer.lifetime, buffer.bytes, buffer.arena, buffer.offset);
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto position = static_cast<std::int32_t>(i);
    line.add({position, position + 1}, nodes[i]->workspace_bytes, nodes[i]->workspace_arena,
             nodes[i]->workspace_offset);
  }
  if (!line.place()) return std::nullopt;
  verify(graph, result);
  return result;
}

}  // namespace anabatic::plan
