// SPDX-License-Identifier: Apache-2.0
#include "train/adaptive/run_precision.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/json_node.h"
#include "passes/precision/product_units.h"

namespace anabatic::train {
namespace {

using Level = PrecisionLevel;

constexpr const char* kAllProducts = "all";  // of a head, which one call computes

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
      change.reason == "error" ? fmt::format("error {:.2f} %", 100 * change.error)
      : change.reason == "fallback"
          ? fmt::format("{:.0f} % of its blocks fall back", 100 * change.fallback)
      : change.reason == "calm"
          ? "the errors of that level are small"
          : fmt::format("the gradient of the weight has {:.1f} times its usual norm",
                        change.norm_ratio);
  const std::string what = change.product == kAllProducts
                               ? change.unit
                               : fmt::format("{} of {}", change.product, change.unit);
  return fmt::format("step {}: {} {} from {} to {}: {}{}", change.step, what,
                     change.denied.empty() ? "goes" : "does not go", to_string(change.from),
                     to_string(change.to), why, change.denied.empty() ? "" : "; " + change.denied);
}

// What products of a unit there are in a state of the controller: all where it names none.
std::vector<spec::ProductRole> saved_roles(const std::optional<JsonNode>& product) {
  std::vector<spec::ProductRole> roles;
  for (const spec::ProductRole role : kProductRoles)
    if (!product || product->as_string() == passes::to_string(role) ||
        (product->as_string() == kAllProducts && role == spec::ProductRole::kForward))
      roles.push_back(role);
  if (roles.empty()) product->refuse("forward, input gradient, weight gradient or all");
  return roles;
}

spec::Precision precision_of(Level level) {
  return level == Level::kFp32 ? spec::Precision::kFp32 : spec::Precision::kBf16;
}

}  // namespace

RunPrecision::RunPrecision(const RunConfig& run, ModelSession& session, Json saved)
    : first_(run), session_(session), saved_(std::move(saved)), adapts_(adapts_precision(run)) {}

std::vector<spec::RaisedProduct> RunPrecision::saved_raised(const RunConfig& run,
                                                            const Json& saved) {
  std::vector<spec::RaisedProduct> raised;
  if (saved.is_null() || !adapts_precision(run)) return raised;
  const JsonNode node(saved, "adaptive");
  for (const JsonNode& unit : node.at("units").items()) {
    const Level level = level_from_string(unit.at("level").as_string());
    const std::string name = unit.at("name").as_string();
    if (level <= Level::kWide || is_pinned(run, name)) continue;
    for (const spec::ProductRole role : saved_roles(unit.find("product")))
      raised.push_back({name, role, precision_of(level)});
  }
  std::ranges::sort(raised);
  return raised;
}

void RunPrecision::bind(const BoundProgram& program, std::int64_t step) {
  program_ = &program;
  calls_.emplace(program.compiled);
  counts_.emplace(*calls_);
  if (!adapts_) return;
  if (!controller_) make_controller();
  places_.clear();
  for (const AdaptiveProduct& product : controller_->products()) {
    const auto found = std::ranges::find(calls_->units(), product.unit, &ProductUnit::name);
    ANABATIC_CHECK(found != calls_->units().end(), "[adaptive] no product of {}", product.unit);
    const auto role = std::ranges::find_if(kProductRoles, [&](spec::ProductRole candidate) {
      return passes::to_string(candidate) == product.product;
    });
    places_.push_back({static_cast<std::size_t>(found - calls_->units().begin()),
                       role != kProductRoles.end() ? *role : spec::ProductRole::kForward});
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
  const std::vector<spec::RaisedProduct> raised = saved_raised(first_, saved_);
  const auto is_raised = [&](const std::string& unit, spec::ProductRole role) {
    return std::ranges::any_of(raised, [&](const spec::RaisedProduct& product) {
      return product.weight == unit && product.role == role;
    });
  };
  // Those of one product.
  const auto flops = [](const ProductUnit& unit) {
    return static_cast<double>(unit.rows) * static_cast<double>(unit.elements_a_row);
  };
  constexpr double kProductsOfHead = 3;
  double all = 0;
  for (const ProductUnit& unit : calls_->units())
    for (const ProductUnit::Product& product : unit.products)
      if (product.is_there) all += (unit.is_head ? kProductsOfHead : 1) * flops(unit);
  std::vector<AdaptiveProduct> products;
  for (const ProductUnit& unit : calls_->units())
    for (const spec::ProductRole role : kProductRoles) {
      if (!(unit.product(role).is_int8 && !is_pinned(first_, unit.name)) &&
          !is_raised(unit.name, role))
        continue;
      products.push_back(
          {.unit = unit.name,
           .product = unit.is_head ? kAllProducts : std::string(passes::to_string(role)),
           .lowest = gains_by_int8(session_.device()) ? Level::kInt8 : Level::kBf16,
           .reads_x = role != spec::ProductRole::kInputGradient,
           .share = (unit.is_head ? kProductsOfHead : 1) * flops(unit) / all});
    }
  std::ranges::stable_sort(products, {}, &AdaptiveProduct::unit);
  controller_.emplace(options_of(first_), std::move(products));
  if (!saved_.is_null()) controller_->restore(saved_);
}

void RunPrecision::unbind() {
  sampled_.reset();
  program_ = nullptr;
}

// Forwards that multiply the same x have its blocks alike, whether or not one call multiplies all.
// So have weight gradients.
void RunPrecision::apply_fallbacks() const {
  std::set<std::pair<std::size_t, spec::ProductRole>> wide;  // by the group of a unit
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (controller_->level(i) == Level::kWide)
      wide.emplace(calls_->units()[places_[i].unit].group, places_[i].role);
  for (const ProductCall& call : calls_->calls()) {
    const runtime::Call& planned =
        program_->compiled.program.calls[static_cast<std::size_t>(call.call)];
    if (!planned.attributes.contains("fallback")) continue;
    const bool is_wide = std::ranges::any_of(call.operands, [&](const ProductOperand& operand) {
      return wide.contains({calls_->units()[operand.unit].group, call.role});
    });
    program_->executor->set_fallback(call.call, is_wide ? 0 : first_.precision.int8.fallback);
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
  norms_.assign(places_.size(), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t i = 0; i < places_.size() && metrics.tokens > 0; ++i) {
    const std::string output =
        fmt::format("sum_squares.{}", text(calls_->units()[places_[i].unit].parameter));
    if (program_->executor->has_output(output)) norms_[i] = std::sqrt(program_->scalar(output));
  }
  controller_->note_norms(norms_);
  if (controller_->is_sampled(metrics.step)) sampled_->end();
}

std::vector<std::string> RunPrecision::decide(std::int64_t step) {
  if (!adapts_ || !controller_->is_sampled(step)) return {};
  std::vector<ProductMeasure> measures;
  for (const auto& [unit, role] : places_) {
    ProductMeasure& measure = measures.emplace_back();
    measure.errors = sampled_->errors(unit, role).value_or(LevelErrors{});
    if (role != spec::ProductRole::kForward) continue;  // whose blocks are counted
    const kernels::CodingCounts& counts = counts_->of_input(unit);
    measure.fallback = share_of(counts.fallbacks, counts.blocks);
  }
  std::vector<std::string> lines = log(controller_->take(step, measures));
  apply_fallbacks();
  return lines;
}

std::optional<RunConfig> RunPrecision::plan_due(const RunConfig& run, std::int64_t step) const {
  if (!adapts_) return std::nullopt;
  std::vector<spec::RaisedProduct> raised;
  const bool is_due = controller_->is_plan_due(step);
  const std::vector<Level> wanted = controller_->wanted();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Level level = is_due ? wanted[i] : controller_->level(i);
    if (level > Level::kWide)
      raised.push_back(
          {calls_->units()[places_[i].unit].name, places_[i].role, precision_of(level)});
  }
  std::ranges::sort(raised);
  if (raised == run.precision.raised) return std::nullopt;
  RunConfig changed = run;
  changed.precision.raised = std::move(raised);
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
