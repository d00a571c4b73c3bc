// SPDX-License-Identifier: Apache-2.0
// What a run measures of its products, and with train.precision: adaptive how it changes their
// precision. What int8 products count goes to the metrics of each step.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "anabatic/events.h"
#include "io/json_lines.h"
#include "train/adaptive/precision_controller.h"
#include "train/adaptive/product_calls.h"
#include "train/adaptive/product_counts.h"
#include "train/adaptive/sampled_errors.h"
#include "train/model_session.h"

namespace anabatic::train {

inline constexpr const char* kAdaptiveFile = "adaptive.jsonl";

class RunPrecision {
 public:
  // `saved`: CheckpointProgress::adaptive; null: none. InvalidArgument for what no run has saved.
  RunPrecision(const RunConfig& run, ModelSession& session, Json saved);

  // RunConfig::Precision::raised that a run with these keys begins with: none unless it adapts.
  static std::vector<spec::RaisedProduct> saved_raised(const RunConfig& run, const Json& saved);

  // After a program was bound, for the steps from `step` on.
  void bind(const BoundProgram& program, std::int64_t step);
  void unbind();  // before the program goes

  // Around a step. The metrics get what products counted.
  void begin(std::int64_t step);
  void end(StepMetrics& metrics);

  // After end(): lines for people of what changed at once, and the run with other levels where it
  // is time for another plan. take_plan() says what became of it.
  std::vector<std::string> decide(std::int64_t step);
  std::optional<RunConfig> plan_due(const RunConfig& run, std::int64_t step) const;
  std::vector<std::string> take_plan(std::int64_t step, const std::string& refusal);

  Json state() const;  // for checkpoints; null where nothing adapts
  void sync() const;

 private:
  void make_controller();
  void apply_fallbacks() const;
  std::vector<std::string> log(const std::vector<LevelChange>& changes);

  const RunConfig first_;
  ModelSession& session_;
  Json saved_;
  const bool adapts_;
  const BoundProgram* program_ = nullptr;
  std::optional<ProductCalls> calls_;
  std::optional<ProductCounts> counts_;  // of the last step
  std::optional<PrecisionController> controller_;
  std::optional<SampledErrors> sampled_;
  struct Place {
    std::size_t unit;  // into calls_->units()
    spec::ProductRole role;
  };
  std::vector<Place> places_;  // of the controller's products
  std::optional<io::JsonLinesWriter> lines_;
  std::vector<double> norms_;
};

}  // namespace anabatic::train
