// SPDX-License-Identifier: Apache-2.0
#include "train/adaptive/run_precision.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/json_node.h"
#include "passes/precision/product_units.h"

namespace anabatic::train {
namespace {

using Level = PrecisionLevel;

AdaptiveOptions options_of(const RunConfig& run) {
  const RunConfig::Precision::Adaptive& keys = run.precision.adaptive;
  return {
      .error = keys.error, .every = keys.every, .lock = keys.lock, .high_share = keys.high_share};
}

// Without these instructions int8 products gain nothing.
bool gains_by_int8(const spec::DeviceSpec& device) {
  return device.has("avx512_vnni") || device.has("avx_vnni");
}

// Whether keys say what precision the unit has.
bool is_pinned(const RunConfig& run, const std::string& name) {
  const passes::ProductPlace place{name, {}};
  const auto holds = [&](const std::string& unit) { return passes::is_in_unit(place, unit); };
  return std::ranges::any_of(run.precision.critical, holds) ||
         std::ranges::any_of(run.precision.keep,
                             [&](const auto& unit) { return holds(unit.first); });
}

std::string to_line(const LevelChange& change) {
  const std::string why =
      change.reason == "error"
          ? fmt::format("error {:.2f} % of its {}", 100 * change.error, change.product)
      : change.reason == "fallback"
          ? fmt::format("{:.0f} % of its blocks fall back", 100 * change.fallback)
      : change.reason == "calm"
          ? "the errors of that level are small"
          : fmt::format("its gradient has {:.1f} times its usual norm", change.norm_ratio);
  return fmt::format("step {}: {} {} from {} to {}: {}{}", change.step, change.unit,
                     change.denied.empty() ? "goes" : "does not go", to_string(change.from),
                     to_string(change.to), why, change.denied.empty() ? "" : "; " + change.denied);
}

}  // namespace

RunPrecision::RunPrecision(const RunConfig& run, ModelSession& session, Json saved)
    : first_(run), session_(session), saved_(std::move(saved)), adapts_(adapts_precision(run)) {}

std::map<std::string, std::string> RunPrecision::saved_levels(const RunConfig& run,
                                                              const Json& saved) {
  std::map<std::string, std::string> levels;
  if (saved.is_null() || !adapts_precision(run)) return levels;
  const JsonNode node(saved, "adaptive");
  for (const JsonNode& unit : node.at("units").items()) {
    const Level level = level_from_string(unit.at("level").as_string());
    const std::string name = unit.at("name").as_string();
    if (level != Level::kInt8 && !is_pinned(run, name)) levels[name] = to_string(level);
  }
  return levels;
}

void RunPrecision::bind(const BoundProgram& program, std::int64_t step) {
  program_ = &program;
  calls_.emplace(program.compiled);
  counts_.emplace(*calls_);
  if (!adapts_) return;
  if (!controller_) make_controller();
  unit_of_.clear();
  for (const AdaptiveUnit& unit : controller_->units()) {
    const auto found = std::ranges::find(calls_->units(), unit.name, &ProductUnit::name);
    ANABATIC_CHECK(found != calls_->units().end(), "[adaptive] no product of {}", unit.name);
    unit_of_.push_back(static_cast<std::size_t>(found - calls_->units().begin()));
  }
  sampled_.emplace(program, *calls_, session_.store(), session_.team(),
                   first_.precision.int8.fallback, static_cast<std::uint64_t>(first_.train.seed));
  apply_fallbacks();
  if (lines_) return;
  const std::filesystem::path file = std::filesystem::path(first_.train.output) / kAdaptiveFile;
  io::keep_steps(file, step - 1);
  lines_.emplace(file);
}

void RunPrecision::make_controller() {
  const std::map<std::string, std::string> levels = saved_levels(first_, saved_);
  double all = 0;
  const auto flops = [](const ProductUnit& unit) {
    return static_cast<double>(unit.rows) * static_cast<double>(unit.elements_a_row);
  };
  for (const ProductUnit& unit : calls_->units()) all += flops(unit);
  std::vector<AdaptiveUnit> units;
  for (const ProductUnit& unit : calls_->units())
    if ((unit.is_int8 && !is_pinned(first_, unit.name)) || levels.contains(unit.name))
      units.push_back({.name = unit.name,
                       .lowest = gains_by_int8(session_.device()) ? Level::kInt8 : Level::kBf16,
                       .share = flops(unit) / all});
  std::ranges::sort(units, {}, &AdaptiveUnit::name);
  controller_.emplace(options_of(first_), std::move(units));
  if (!saved_.is_null()) controller_->restore(saved_);
}

void RunPrecision::unbind() {
  sampled_.reset();
  program_ = nullptr;
}

// Units that multiply the same x have its blocks alike, whether or not one call multiplies all.
void RunPrecision::apply_fallbacks() const {
  std::vector<bool> is_wide(calls_->units().size());
  for (std::size_t i = 0; i < unit_of_.size(); ++i)
    if (controller_->level(i) == Level::kWide) is_wide[calls_->units()[unit_of_[i]].group] = true;
  for (const ProductCall& call : calls_->calls()) {
    const runtime::Call& planned =
        program_->compiled.program.calls[static_cast<std::size_t>(call.call)];
    if (!planned.attributes.contains("fallback")) continue;
    const bool wide = std::ranges::any_of(call.operands, [&](const ProductOperand& operand) {
      return is_wide[calls_->units()[operand.unit].group];
    });
    program_->executor->set_fallback(call.call, wide ? 0 : first_.precision.int8.fallback);
  }
}

void RunPrecision::begin(std::int64_t step) {
  program_->executor->clear_counts();
  if (adapts_ && controller_->is_sampled(step)) sampled_->begin(step);
}

void RunPrecision::end(StepMetrics& metrics) {
  counts_->take(*program_, *calls_);
  add_counts(*counts_, *calls_, metrics);
  if (!adapts_) return;
  norms_.assign(unit_of_.size(), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t i = 0; i < unit_of_.size() && metrics.tokens > 0; ++i) {
    const std::string output =
        fmt::format("sum_squares.{}", text(calls_->units()[unit_of_[i]].parameter));
    if (program_->executor->has_output(output)) norms_[i] = std::sqrt(program_->scalar(output));
  }
  controller_->note_norms(norms_);
  if (controller_->is_sampled(metrics.step)) sampled_->end();
}

std::vector<std::string> RunPrecision::decide(std::int64_t step) {
  if (!adapts_ || !controller_->is_sampled(step)) return {};
  std::vector<UnitMeasure> measures;
  for (std::size_t i = 0; i < unit_of_.size(); ++i) {
    UnitMeasure measure = sampled_->measure(unit_of_[i], controller_->level(i));
    const kernels::CodingCounts& counts = counts_->of_input(unit_of_[i]);
    measure.fallback = share_of(counts.fallbacks, counts.blocks);
    measures.push_back(std::move(measure));
  }
  std::vector<std::string> lines = log(controller_->take(step, measures));
  apply_fallbacks();
  return lines;
}

std::optional<RunConfig> RunPrecision::plan_due(const RunConfig& run, std::int64_t step) const {
  if (!adapts_) return std::nullopt;
  std::map<std::string, std::string> levels;
  const bool is_due = controller_->is_plan_due(step);
  const std::vector<Level> wanted = controller_->wanted();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Level level = is_due ? wanted[i] : controller_->level(i);
    if (level > Level::kWide) levels[controller_->units()[i].name] = to_string(level);
  }
  std::map<std::string, std::string> planned = run.precision.levels;
  std::erase_if(planned, [](const auto& level) { return level.second == "wide"; });
  if (levels == planned) return std::nullopt;
  RunConfig changed = run;
  changed.precision.levels = std::move(levels);
  return changed;
}

std::vector<std::string> RunPrecision::take_plan(std::int64_t step, const std::string& refusal) {
  std::vector<std::string> lines = log(controller_->take_plan(step, refusal));
  apply_fallbacks();
  return lines;
}

std::vector<std::string> RunPrecision::log(const std::vector<LevelChange>& changes) {
  std::vector<std::string> lines;
  for (const LevelChange& change : changes) {
    lines_->write(to_json(change));
    lines.push_back(to_line(change));
  }
  return lines;
}

Json RunPrecision::state() const { return controller_ ? controller_->to_json() : Json(); }

void RunPrecision::sync() const {
  if (lines_) lines_->sync();
}

}  // namespace anabatic::train
