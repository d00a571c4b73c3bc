// SPDX-License-Identifier: Apache-2.0
// The time to recompute a value, or to restore it from the form in which it was saved.
#pragma once
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/product_codes.h"
#include "analysis/rebuild.h"
#include "ir/graph.h"
#include "plan/prices.h"
#include "spec/decisions.h"
#include "spec/device_spec.h"

namespace anabatic::plan {

class ChoicePrices {
 public:
  // All must outlive it.
  ChoicePrices(const ir::Graph& graph, const analysis::ProductCodes& codes,
               const spec::DeviceSpec& device, const OpEfficiency& efficiency);

  // Seconds of a micro-batch. Of a value that waits in another form: there and back.
  double seconds(const analysis::Rebuild& rebuild, const analysis::Treatments& treatments);

 private:
  struct Conversion {
    double to, from;
  };
  const Conversion& conversion(ir::ValueId value, spec::SavedForm form);
  double seconds_as_form(const analysis::Rebuild& rebuild, const analysis::Treatments& treatments);

  const ir::Graph& graph_;
  const analysis::ProductCodes& codes_;
  const spec::DeviceSpec& device_;
  const OpEfficiency& efficiency_;
  struct Price {
    std::string_view op;
    std::vector<ir::ValueId> outputs;
    double seconds;
  };
  // As they are asked for.
  std::map<std::pair<spec::SavedForm, ir::ValueId>, Conversion> conversions_;
  std::vector<std::vector<Price>> rebuilds_;  // by the forward's node
};

}  // namespace anabatic::plan
