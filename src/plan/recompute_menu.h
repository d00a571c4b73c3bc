// SPDX-License-Identifier: Apache-2.0
// What a step could make again, or keep in fewer bytes, rather than keep: what each choice does to
// its memory and time, simulated on the timeline of a plan that keeps everything.
#pragma once
#include <cstdint>
#include <map>
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

// Up to which form saved values may be compressed, those of at least `min_bytes`.
struct CompressionOptions {
  spec::Compression allowed = spec::Compression::kNone;
  std::int64_t min_bytes = 1 << 16;
};

struct MenuItem {
  std::string name;                   // key of its first value
  std::vector<std::string> keys{};    // of its values (analysis/rebuild.h)
  std::vector<ir::ValueId> values{};  // what one node makes; an activation and its products apart.
                                      // Where it is compressed one, or a few of a kind
  std::int64_t bytes = 0;             // that are no longer kept
  spec::Compression compression = spec::Compression::kNone;  // otherwise made again
  bool is_of(std::string_view hint) const;                   // plan/hints.h
};

class RecomputeMenu {
 public:
  // `plan` is of `graph`, which keeps everything; both must outlive the menu.
  RecomputeMenu(const ir::Graph& graph, const Plan& plan, const spec::DeviceSpec& device,
                const OpEfficiency& efficiency, const CompressionOptions& compression = {});

  const std::vector<MenuItem>& items() const { return items_; }

  // With the frame's live bytes against `budget_bytes`. What is made again counts from the node
  // that is first to need it; what stands beside it then counts whole. Of the items of one value
  // one holds: what makes it again, or else the least bytes.
  MenuOutcome evaluate(const std::vector<bool>& chosen, std::int64_t budget_bytes) const;

  spec::Decisions decisions(const std::vector<bool>& chosen) const;

 private:
  void add_items();
  void add_compressions(const CompressionOptions& options);
  double compression_price(const TensorType& type, spec::Compression format) const;
  analysis::Treatments treatments(const std::vector<bool>& chosen) const;
  double price(const analysis::Rebuild& rebuild) const;

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
  // By ValueId: there and back, in a micro-batch; of formats without items empty.
  std::map<spec::Compression, std::vector<double>> compression_seconds_;
};

}  // namespace anabatic::plan
