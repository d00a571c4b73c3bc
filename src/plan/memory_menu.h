// SPDX-License-Identifier: Apache-2.0
// What a step could recompute, compress or put on disk rather than keep, and which calls it could
// slice. The effect of each choice on memory and time is simulated on the timeline of a plan that
// keeps everything.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "analysis/product_codes.h"
#include "analysis/rebuild.h"
#include "analysis/slices.h"
#include "ir/graph.h"
#include "plan/choice_id.h"
#include "plan/choice_prices.h"
#include "plan/frame_timeline.h"
#include "plan/kernel_selection.h"
#include "plan/memory_solver.h"
#include "plan/plan.h"
#include "plan/prices.h"
#include "plan/transfers.h"
#include "spec/decisions.h"
#include "spec/device_spec.h"

namespace anabatic::plan {

// The last form to which saved values of at least `min_bytes` may be compressed.
struct CompressionOptions {
  spec::SavedForm allowed = spec::SavedForm::kWhole;
  std::int64_t min_bytes = 1 << 16;
};

// Whether saved values of at least `min_bytes` may be offloaded to disk.
struct OffloadOptions {
  bool is_allowed = false;
  std::int64_t min_bytes = 1 << 20;
  std::vector<std::string> cold{};  // hints (plan/hints.h): values that always are
};

struct MenuItem : ChoiceId {
  std::vector<std::string> keys{};  // of its values (analysis/rebuild.h), or of calls
  // What one node computes, unless its outputs are separate. For a saved form: one value, or a few
  // of a kind.
  std::vector<ir::ValueId> values{};
  std::int64_t bytes = 0;                   // that are no longer kept
  bool is_of(std::string_view hint) const;  // plan/hints.h, of values
};

class MemoryMenu {
 public:
  // `plan` is of `graph`, which keeps everything; graph, plan, device and efficiency must outlive
  // the menu.
  MemoryMenu(const ir::Graph& graph, const Plan& plan, const spec::DeviceSpec& device,
             const OpEfficiency& efficiency, const CompressionOptions& compression = {},
             const OffloadOptions& offload = {}, const analysis::ProductFusions& fusions = {});

  MemoryMenu(const MemoryMenu&) = delete;
  MemoryMenu& operator=(const MemoryMenu&) = delete;

  const std::vector<MenuItem>& items() const { return items_; }

  // Compares the frame's live bytes with `budget_bytes`. A recomputed value counts from the first
  // node that needs it; values computed with it count in full then. Of several chosen items of one
  // value one applies: recomputation, or else the smallest form. Of one call, the most slices.
  MenuOutcome evaluate(const std::vector<bool>& chosen, std::int64_t budget_bytes) const;

  spec::Decisions decisions(const std::vector<bool>& chosen) const;

 private:
  void add_items();
  // Adds an item for each value of at least `min_bytes` that may be saved in that form.
  void add_forms(spec::SavedForm form, std::int64_t min_bytes);
  // Adds an item for each number of slices that makes the calls of a kind smaller.
  void add_slices();
  void add_slices(const analysis::SliceableKind& kind, std::int64_t slices);

  struct SliceEffect {
    struct Change {
      std::size_t begin, end;  // positions
      std::int64_t bytes;      // that are alive there in addition
    };
    std::vector<Change> changes{};
    double seconds = 0;
  };
  // The effect of cutting one call; returns the bytes that are no longer kept.
  std::int64_t add_slices(const analysis::SliceableCall& call, std::int64_t slices,
                          SliceEffect& effect) const;
  // Whether no other chosen item cuts the same calls into more slices.
  bool is_effective_slice(std::size_t item, const std::vector<bool>& chosen) const;

  analysis::Treatments treatments(const std::vector<bool>& chosen) const;
  // The changes on the timeline by a value that is recomputed or restored.
  void change_frame(const analysis::Rebuild& rebuild, ir::ValueId value,
                    const analysis::Treatments& treatments, FrameChanges& changes,
                    std::vector<Offload>& offloads) const;
  // The packings that this rebuild reads, and which are freed after it: recomputed products of one
  // reader do not have theirs at once. Takes them out of `packings`.
  void pass_packings(const analysis::Rebuild& rebuild, std::vector<ir::ValueId>& packings,
                     FrameChanges& changes) const;
  void change_frame_of_form(const analysis::Rebuild& rebuild, ir::ValueId value,
                            const analysis::Treatments& treatments, FrameChanges& changes) const;

  const ir::Graph& graph_;
  const Plan& plan_;
  const spec::DeviceSpec& device_;
  const OpEfficiency& efficiency_;
  analysis::Rebuilder rebuilder_;
  analysis::ProductCodes codes_;
  FrameTimeline timeline_;
  Additions additions_;
  mutable ChoicePrices prices_;  // each is computed once
  std::vector<MenuItem> items_;
  Calls calls_;                                       // of the plan; empty without items on disk
  std::map<std::size_t, SliceEffect> slice_effects_;  // by item
};

}  // namespace anabatic::plan
