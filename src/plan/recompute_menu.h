// SPDX-License-Identifier: Apache-2.0
// What a step could make again rather than keep, and what each choice does to its memory and time:
// simulated on the timeline of a plan that keeps everything.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "analysis/rebuild.h"
#include "ir/graph.h"
#include "plan/memory_solver.h"
#include "plan/plan.h"
#include "plan/prices.h"
#include "spec/decisions.h"
#include "spec/device_spec.h"

namespace anabatic::plan {

struct MenuItem {
  std::string name;                   // key of its first value
  std::vector<std::string> keys{};    // of its values (analysis/rebuild.h)
  std::vector<ir::ValueId> values{};  // what one node makes; an activation and its products apart
  std::int64_t bytes = 0;             // of the values
  bool is_of(std::string_view hint) const;  // plan/hints.h
};

class RecomputeMenu {
 public:
  // `plan` is of `graph`, which keeps everything; both must outlive the menu.
  RecomputeMenu(const ir::Graph& graph, const Plan& plan, const spec::DeviceSpec& device,
                const OpEfficiency& efficiency);

  const std::vector<MenuItem>& items() const { return items_; }

  // With the frame's live bytes against `budget_bytes`. What is made again counts from the node
  // that is first to need it; what stands beside it then counts whole.
  MenuOutcome evaluate(const std::vector<bool>& chosen, std::int64_t budget_bytes) const;

  spec::Decisions decisions(const std::vector<bool>& chosen) const;

 private:
  void add_items();
  double price(const analysis::Rebuild& rebuild) const;

  const ir::Graph& graph_;
  const Plan& plan_;
  const spec::DeviceSpec& device_;
  const OpEfficiency& efficiency_;
  analysis::Rebuilder rebuilder_;
  std::vector<MenuItem> items_;
  std::vector<std::int64_t> live_;         // by position: frame bytes of the plan
  std::vector<std::int32_t> position_;     // by NodeId
  std::vector<std::int32_t> forward_end_;  // by ValueId: behind its last use in the forward
};

}  // namespace anabatic::plan
