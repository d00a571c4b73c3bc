// SPDX-License-Identifier: Apache-2.0
#include "plan/swap.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "plan/hints.h"
#include "plan/offsets.h"

namespace anabatic::plan {
namespace {

std::int64_t align_down(std::int64_t bytes) {
  return bytes / kSwapAlignmentBytes * kSwapAlignmentBytes;
}

// A span of the frame, with when its bytes are in use. Uses do not overlap.
struct Segment {
  std::int64_t begin = 0, end = 0;
  std::vector<Lifetime> uses{};  // ascending
};

constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();

// Whether a segment is free for a window with these positions of use.
struct Answer {
  std::int32_t free_from = 0;       // kNever: something else uses it then
  std::int32_t used_next = kNever;  // after it, going round into the next step
};

// A buffer or workspace that the planner put into the frame.
struct Item {
  Lifetime lifetime{};
  std::int64_t offset = 0, end = 0;
};

std::vector<Item> items_of_frame(const Plan& plan) {
  std::vector<Item> items;
  for (const PlannedBuffer& buffer : plan.buffers)
    if (buffer.arena == spec::Arena::kFrame && buffer.bytes > 0 && !buffer.lifetime.empty())
      items.push_back({buffer.lifetime, buffer.offset, buffer.offset + buffer.bytes});
  std::int32_t position = 0;
  for (const auto& [action, order] : plan.orders)
    for (const PlannedNode& node : order) {
      if (node.workspace_bytes > 0)
        items.push_back({{position, position + 1},
                         node.workspace_offset,
                         node.workspace_offset + node.workspace_bytes});
      ++position;
    }
  return items;
}

class Occupancy {
 public:
  Occupancy(const std::vector<Item>& items, std::int32_t length) : length_(length) {
    std::vector<std::int64_t> bounds{0, kEnd};
    for (const Item& item : items) {
      bounds.push_back(align_down(item.offset));
      bounds.push_back(align_to_sectors(item.end));
    }
    std::sort(bounds.begin(), bounds.end());
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i)
      segments_.push_back({bounds[i], bounds[i + 1]});
    for (const Item& item : items)
      for (std::size_t i = at(align_down(item.offset)); segments_[i].begin < item.end; ++i)
        segments_[i].uses.push_back(item.lifetime);
    for (Segment& segment : segments_) merge(segment.uses);
  }

  struct Place {
    std::int64_t offset = -1;
    std::int32_t free_from = kNever, used_next = 0;
  };

  // The best place for `bytes` below `capacity`, for a window whose read begins at `earliest` at
  // the soonest. Linear in the segments: `latest` and `soonest` hold those in reach that may still
  // be the one that is free last, and used next.
  Place find(std::int64_t bytes, Lifetime use, std::int32_t earliest, std::int64_t capacity) const {
    Place best;
    std::deque<std::size_t> latest, soonest;
    std::vector<Answer> answers(segments_.size());
    std::size_t end = 0;
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      if (segments_[i].begin + bytes > capacity) break;
      for (; end < segments_.size() && segments_[end].begin < segments_[i].begin + bytes; ++end) {
        answers[end] = ask(segments_[end], use);
        while (!latest.empty() && answers[latest.back()].free_from <= answers[end].free_from)
          latest.pop_back();
        latest.push_back(end);
        while (!soonest.empty() && answers[soonest.back()].used_next >= answers[end].used_next)
          soonest.pop_back();
        soonest.push_back(end);
      }
      while (latest.front() < i) latest.pop_front();
      while (soonest.front() < i) soonest.pop_front();
      const std::int32_t free_from = answers[latest.front()].free_from;
      if (free_from == kNever) continue;
      const std::int32_t begin = std::max(free_from, earliest);
      const std::int32_t next = answers[soonest.front()].used_next;
      if (best.offset < 0 || begin < best.free_from ||
          (begin == best.free_from && next > best.used_next))
        best = {segments_[i].begin, begin, next};
    }
    return best;
  }

  // The lowest offset whose bytes nothing else uses then.
  std::int64_t lowest(std::int64_t bytes, Lifetime use) const {
    std::int64_t offset = 0;
    for (const Segment& segment : segments_) {
      if (segment.begin >= offset + bytes) break;
      if (ask(segment, use).free_from == kNever) offset = segment.end;
    }
    return offset;
  }

  void take(std::int64_t offset, std::int64_t bytes, Lifetime lifetime) {
    split(offset);
    split(offset + bytes);
    for (std::size_t i = at(offset); segments_[i].begin < offset + bytes; ++i) {
      segments_[i].uses.push_back(lifetime);
      merge(segments_[i].uses);
    }
  }

 private:
  static constexpr std::int64_t kEnd = std::int64_t{1} << 60;

  std::size_t at(std::int64_t offset) const {
    const auto after = std::upper_bound(
        segments_.begin(), segments_.end(), offset,
        [](std::int64_t value, const Segment& segment) { return value < segment.begin; });
    return static_cast<std::size_t>(after - segments_.begin()) - 1;
  }

  void split(std::int64_t offset) {
    const std::size_t i = at(offset);
    if (segments_[i].begin == offset) return;
    Segment right = segments_[i];
    right.begin = segments_[i].end = offset;
    segments_.insert(segments_.begin() + static_cast<std::ptrdiff_t>(i) + 1, std::move(right));
  }

  // Sorts. Where a sector holds several buffers, uses that overlap become one.
  static void merge(std::vector<Lifetime>& uses) {
    std::sort(uses.begin(), uses.end(),
              [](const Lifetime& a, const Lifetime& b) { return a.begin < b.begin; });
    std::vector<Lifetime> merged;
    for (const Lifetime& use : uses)
      if (!merged.empty() && use.begin < merged.back().end)
        merged.back().end = std::max(merged.back().end, use.end);
      else
        merged.push_back(use);
    uses = std::move(merged);
  }

  Answer ask(const Segment& segment, Lifetime use) const {
    const auto after = std::upper_bound(
        segment.uses.begin(), segment.uses.end(), use.begin,
        [](std::int32_t value, const Lifetime& lifetime) { return value < lifetime.begin; });
    Answer answer;
    if (after != segment.uses.begin()) {
      const std::int32_t end = std::prev(after)->end;
      answer.free_from = end > use.begin ? kNever : end;
    }
    if (after != segment.uses.end()) {
      answer.used_next = after->begin;
      if (after->begin < use.end) answer.free_from = kNever;
    } else if (!segment.uses.empty()) {
      answer.used_next = segment.uses.front().begin + length_;
    }
    return answer;
  }

  std::int32_t length_;
  std::vector<Segment> segments_;
};

struct Candidate {
  std::int32_t buffer = 0;
  Lifetime use{};
  bool may_stay = true;  // in memory: its readers read the state itself
};

// States that the options put on disk, with the span of positions that use them, in that order.
std::vector<Candidate> candidates(const ir::Graph& graph, const std::vector<ir::NodeId>& order,
                                  const DiskOptions& options, const Plan& plan) {
  std::map<std::int32_t, Lifetime> uses;
  std::set<std::int32_t> reloaded;  // states
  std::set<ir::NodeId> copies;
  for (const Offload& offload : plan.offloads)
    if (offload.is_of_state()) {
      reloaded.insert(offload.state);
      copies.insert(offload.reload);
    }
  for (std::size_t i = 0; i < order.size(); ++i)
    if (!copies.contains(order[i]))
      for (const auto* list : {&graph.node(order[i]).inputs, &graph.node(order[i]).outputs})
        for (const ir::ValueId value : *list) {
          const auto position = static_cast<std::int32_t>(i);
          Lifetime& use = uses[plan.buffer_of_value[index(value)]];
          use = analysis::join(use, {position, position + 1});
        }
  const std::map<ir::ValueId, Experts> experts = experts_of_states(graph);
  std::vector<Candidate> result;
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const PlannedBuffer& buffer = plan.buffers[i];
    if (buffer.arena != spec::Arena::kPersistent || buffer.bytes < options.min_bytes) continue;
    const ir::State& state = graph.states[static_cast<std::size_t>(buffer.state)];
    const Lifetime use = uses[static_cast<std::int32_t>(i)];
    const auto is_output = [&](ir::ValueId value) {
      return std::find(graph.outputs.begin(), graph.outputs.end(), value) != graph.outputs.end();
    };
    const bool is_reloaded = reloaded.contains(buffer.state);
    if ((state.kind() != ir::StateKind::kOptimizer && !is_reloaded) ||
        (state.role == ir::StateRole::kLower && !options.masters) || use.empty() ||
        is_output(state.before) || is_output(state.after) ||
        !may_go_to_disk(options, text(parameter_of(state)), experts.at(state.before)))
      continue;
    result.push_back({static_cast<std::int32_t>(i), use, !is_reloaded});
  }
  std::stable_sort(result.begin(), result.end(), [](const Candidate& a, const Candidate& b) {
    return a.use.begin < b.use.begin;
  });
  std::int64_t resident = 0;
  std::erase_if(result, [&](const Candidate& state) {
    if (state.may_stay)
      resident += align_to_sectors(plan.buffers[static_cast<std::size_t>(state.buffer)].bytes);
    return state.may_stay && resident <= options.resident_bytes;
  });
  return result;
}

// Bytes of the windows that one node needs at once, at most.
std::int64_t most_at_once(const std::vector<Candidate>& states, const Plan& plan) {
  std::map<std::int32_t, std::int64_t> bytes;
  for (const Candidate& state : states)
    bytes[state.use.begin] +=
        align_to_sectors(plan.buffers[static_cast<std::size_t>(state.buffer)].bytes);
  std::int64_t most = 0;
  for (const auto& [position, sum] : bytes) most = std::max(most, sum);
  return most;
}

// Bytes that nothing uses at a position, of a frame of that size.
std::int64_t free_bytes_at(const std::vector<Item>& items, std::int32_t position,
                           std::int64_t frame_bytes) {
  for (const Item& item : items)
    if (item.lifetime.begin <= position && position < item.lifetime.end)
      frame_bytes -= item.end - item.offset;
  return frame_bytes;
}

// The first use by something else than windows from `end` on, going round.
std::int32_t first_use_after(const std::vector<Item>& items, std::int64_t offset,
                             std::int64_t bytes, std::int32_t end, std::int32_t length) {
  std::int32_t first = kNever;
  for (const Item& item : items) {
    if (item.offset >= offset + bytes || offset >= item.end) continue;
    const std::int32_t begin = item.lifetime.begin;
    first = std::min(first, begin >= end ? begin : begin + length);
  }
  return first == kNever ? SwapWindow::kNoPosition : first % length;
}

}  // namespace

void place_windows(const ir::Graph& graph, const std::vector<ir::NodeId>& order,
                   const PlanOptions& options, Plan& plan) {
  if (!options.disk.optimizer_state) return;
  const auto length = static_cast<std::int32_t>(order.size());
  const std::vector<Candidate> states = candidates(graph, order, options.disk, plan);
  const std::vector<Item> items = items_of_frame(plan);
  Occupancy occupancy(items, length);
  if (states.empty()) return;
  // Room for the first windows, where gradients may still fill the frame.
  const std::int64_t wanted = options.disk.num_windows * most_at_once(states, plan),
                     left = free_bytes_at(items, states.front().use.begin, plan.frame_bytes);
  const std::int64_t capacity =
      align_to_sectors(plan.frame_bytes + std::max<std::int64_t>(wanted - left, 0));
  std::int32_t earliest = 0;
  for (const Candidate& state : states) {
    PlannedBuffer& buffer = plan.buffers[static_cast<std::size_t>(state.buffer)];
    SwapWindow window{.buffer = state.buffer,
                      .bytes = align_to_sectors(buffer.bytes),
                      .read_at = state.use.begin,
                      .use = state.use.begin,
                      .end = state.use.end};
    std::int64_t offset = align_to_sectors(plan.frame_bytes);
    if (!options.trivial) {
      const Occupancy::Place place = occupancy.find(window.bytes, state.use, earliest, capacity);
      offset = place.offset >= 0 ? place.offset : occupancy.lowest(window.bytes, state.use);
      if (place.offset >= 0) window.read_at = place.free_from;
      earliest = window.read_at;
      occupancy.take(offset, window.bytes, {window.read_at, window.end});
    }
    window.written_by = options.trivial
                            ? window.end % length
                            : first_use_after(items, offset, window.bytes, window.end, length);
    plan.persistent_bytes -= align_bytes(buffer.bytes);
    plan.disk_bytes += window.bytes;
    buffer.arena = spec::Arena::kFrame;
    buffer.offset = offset;
    buffer.lifetime = {window.read_at, window.end};
    plan.frame_bytes = std::max(plan.frame_bytes, offset + window.bytes);
    plan.windows.push_back(window);
  }
}

}  // namespace anabatic::plan
