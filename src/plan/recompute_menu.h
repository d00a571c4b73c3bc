// SPDX-License-Identifier: Apache-2.0
// What a step could make again, keep in fewer bytes, or put on disk, rather than keep, and which
// calls it could cut into slices: what each choice does to its memory and time, simulated on the
// timeline of a plan that keeps everything whole.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "analysis/rebuild.h"
#include "analysis/slices.h"
#include "ir/graph.h"
#include "plan/choice_id.h"
#include "plan/memory_solver.h"
#include "plan/plan.h"
#include "plan/prices.h"
#include "plan/transfers.h"
#include "spec/decisions.h"
#include "spec/device_spec.h"

namespace anabatic::plan {

// Up to which form saved values may be compressed, those of at least `min_bytes`.
struct CompressionOptions {
  spec::SavedForm allowed = spec::SavedForm::kWhole;
  std::int64_t min_bytes = 1 << 16;
};

// Whether saved values may wait on disk, those of at least `min_bytes`.
struct OffloadOptions {
  bool is_allowed = false;
  std::int64_t min_bytes = 1 << 20;
  std::vector<std::string> cold{};  // hints (plan/hints.h): values that do, budget or not
};

struct MenuItem : ChoiceId {
  std::vector<std::string> keys{};    // of its values (analysis/rebuild.h), or of calls
  std::vector<ir::ValueId> values{};  // what one node makes; an activation and its products apart.
                                      // Where it waits in a form one, or a few of a kind
  std::int64_t bytes = 0;             // that are no longer kept
  bool is_of(std::string_view hint) const;  // plan/hints.h, of values
};

class RecomputeMenu {
 public:
  // `plan` is of `graph`, which keeps everything; graph, plan, device and efficiency must outlive
  // the menu.
  RecomputeMenu(const ir::Graph& graph, const Plan& plan, const spec::DeviceSpec& device,
                const OpEfficiency& efficiency, const CompressionOptions& compression = {},
                const OffloadOptions& offload = {});

  const std::vector<MenuItem>& items() const { return items_; }

  // With the frame's live bytes against `budget_bytes`. What is made again counts from the node
  // that is first to need it; what stands beside it then counts whole. Of the items of one value
  // one holds: what makes it again, or else the least bytes; of those of one call the most slices.
  MenuOutcome evaluate(const std::vector<bool>& chosen, std::int64_t budget_bytes) const;

  spec::Decisions decisions(const std::vector<bool>& chosen) const;

 private:
  void add_items();
  // An item for each value of at least `min_bytes` that may wait in that form.
  void add_forms(spec::SavedForm form, std::int64_t min_bytes);
  // An item for each number of slices that makes the calls of a kind smaller.
  void add_slices();
  void add_slices(const analysis::SliceableKind& kind, std::int64_t slices);
  // Whether no other chosen item cuts the same calls into more slices.
  bool is_effective_slice(std::size_t item, const std::vector<bool>& chosen) const;
  // There and back of a value of that type.
  struct ConversionPrice {
    double to, from;
  };
  ConversionPrice conversion_price(const TensorType& type, spec::SavedForm format) const;
  analysis::Treatments treatments(const std::vector<bool>& chosen) const;
  bool waits_in_codes(ir::ValueId value, const analysis::Treatments& treated) const;
  // Whether the product that makes the value leaves it in eight bits (passes/recompute.h).
  bool is_left_in_codes(ir::ValueId value, const analysis::Treatments& treated) const;
  // Whether the gradient behind a product reads its codes, and those of the other product.
  bool are_codes_read(ir::ValueId value, const analysis::Treatments& treated) const;
  // Whether a gradient behind a product makes the activation (passes/recompute.h).
  bool comes_with_gradient(ir::ValueId activation, ir::ValueId gate) const;
  double price(const analysis::Rebuild& rebuild, const analysis::Treatments& treated) const;

  const ir::Graph& graph_;
  const Plan& plan_;
  const spec::DeviceSpec& device_;
  const OpEfficiency& efficiency_;
  analysis::Rebuilder rebuilder_;
  std::vector<MenuItem> items_;
  // By position: frame bytes of the plan, and those of them that live on from before.
  std::vector<std::int64_t> live_, ahead_;
  std::vector<std::int32_t> position_;     // by NodeId
  std::vector<std::int32_t> forward_end_;  // by ValueId: behind its last use in the forward
  std::vector<ir::ValueId> beside_;        // by ValueId: up of a gate, gate of an up
  // By ValueId: there and back, in a micro-batch; of forms without items empty.
  std::map<spec::SavedForm, std::vector<double>> form_seconds_;
  std::vector<double> from_codes_seconds_;  // by ValueId: of eight bits, back alone
  ir::NodeId first_gradient_;               // of swiglu behind a product
  // Of what is made again, by op and first output: as they are asked for.
  mutable std::map<std::pair<std::string_view, ir::ValueId>, double> rebuild_seconds_;
  Calls calls_;  // of the plan; without items on disk empty
  struct SliceEffect {
    struct Change {
      std::int32_t begin, end;  // positions
      std::int64_t bytes;       // that live there more
    };
    std::vector<Change> changes{};
    double seconds = 0;
  };
  std::map<std::size_t, SliceEffect> slice_effects_;  // by item
  std::vector<const PlannedNode*> planned_;           // by position
};

}  // namespace anabatic::plan
