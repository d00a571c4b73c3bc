// SPDX-License-Identifier: Apache-2.0
#include "train/adaptive/precision_controller.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"

namespace anabatic::train {
namespace {

using Level = PrecisionLevel;

constexpr std::array<const char*, kNumLevels> kWords{"int8", "wide", "bf16", "fp32"};

std::size_t index(Level level) { return static_cast<std::size_t>(level); }
Level level_at(std::size_t i) { return static_cast<Level>(i); }

// Whether the program has both: what a block falls back by is a value that kernels read.
bool needs_plan(Level from, Level to) { return std::max(from, to) > Level::kWide; }

// JSON has no infinity, which operands that are not finite leave.
double saved_error(double error) { return std::isfinite(error) ? error : -1; }
double read_error(const JsonNode& node) {
  const double error = node.as_number(-1, std::numeric_limits<double>::max());
  return error < 0 ? std::numeric_limits<double>::infinity() : error;
}

}  // namespace

const char* to_string(Level level) { return kWords[index(level)]; }

Level level_from_string(const std::string& word) {
  const auto found = std::ranges::find(kWords, word);
  ANABATIC_REQUIRE(found != kWords.end(), "expected int8, wide, bf16 or fp32, got '{}'", word);
  return level_at(static_cast<std::size_t>(found - kWords.begin()));
}

OrderedJson to_json(const LevelChange& change) {
  OrderedJson json{{"step", change.step},
                   {"unit", change.unit},
                   {"product", change.product},
                   {"from", to_string(change.from)},
                   {"to", to_string(change.to)},
                   {"reason", change.reason},
                   {"error", change.error},
                   {"fallback", change.fallback},
                   {"norm_ratio", change.norm_ratio}};
  if (!change.denied.empty()) json["denied"] = change.denied;
  return json;
}

PrecisionController::PrecisionController(AdaptiveOptions options,
                                         std::vector<AdaptiveProduct> products)
    : options_(options), products_(std::move(products)), states_(products_.size()) {
  for (std::size_t i = 0; i < products_.size(); ++i)
    states_[i].level = states_[i].wanted = products_[i].lowest;
}

void PrecisionController::note_norms(std::span<const double> norms) {
  ANABATIC_CHECK(norms.size() == states_.size(), "[adaptive] {} norms of {} products", norms.size(),
                 states_.size());
  for (std::size_t i = 0; i < norms.size(); ++i) {
    State& state = states_[i];
    if (!std::isfinite(norms[i])) continue;
    if (state.num_norms >= kLeastNorms && state.mean_norm > 0)
      state.norm_ratio = std::max(state.norm_ratio, norms[i] / state.mean_norm);
    state.num_norms = std::min(state.num_norms + 1, kNormsOfMean);
    state.mean_norm += (norms[i] - state.mean_norm) / static_cast<double>(state.num_norms);
  }
}

void PrecisionController::note_sample(std::int64_t step, const ProductMeasure& measure,
                                      State& state) const {
  const bool is_over = !(measure.errors[index(state.level)] <= options_.error);
  state.over_in_row = is_over ? state.over_in_row + 1 : 0;
  const bool falls_back = state.level == Level::kInt8 && measure.fallback > kMostFallback;
  const bool asks_for_more = is_over || falls_back || state.norm_ratio > kMostNormRatio;
  for (std::size_t l = 0; l < kNumLevels; ++l)
    if (asks_for_more || !(measure.errors[l] <= kLowerShare * options_.error))
      state.against[l] = step;
}

bool PrecisionController::has_level(std::size_t product, std::size_t level) const {
  return products_[product].reads_x || level_at(level) != Level::kWide;
}

Level PrecisionController::next(std::size_t product, Level level) const {
  std::size_t l = std::min(index(level) + 1, kNumLevels - 1);
  return level_at(has_level(product, l) ? l : l + 1);
}

LevelChange PrecisionController::wish(std::int64_t step, std::size_t product,
                                      const ProductMeasure& measure) const {
  const State& state = states_[product];
  LevelChange change{.step = step,
                     .unit = products_[product].unit,
                     .product = products_[product].product,
                     .from = state.level,
                     .to = state.level,
                     .reason = {},
                     .error = measure.errors[index(state.level)],
                     .fallback = measure.fallback,
                     .norm_ratio = state.norm_ratio};
  const auto to = [&](Level level, const char* reason) {
    change.to = level;
    change.reason = reason;
    return change;
  };
  if (state.over_in_row >= 2) {
    Level level = next(product, state.level);
    while (level < Level::kFp32 && !(measure.errors[index(level)] <= options_.error))
      level = next(product, level);
    return to(level, "error");
  }
  if (state.level == Level::kInt8 && measure.fallback > kMostFallback)
    return to(Level::kWide, "fallback");
  if (state.norm_ratio > kMostNormRatio) return to(next(product, state.level), "gradient norm");
  for (std::size_t l = index(products_[product].lowest); l < index(state.level); ++l)
    if (has_level(product, l) && step - state.against[l] >= options_.lock)
      return to(level_at(l), "calm");
  return change;
}

bool PrecisionController::is_high(std::size_t product, Level level) const {
  return level > std::max(products_[product].lowest, Level::kWide);
}

double PrecisionController::high_share_with(std::size_t product, Level level) const {
  double share = 0;
  for (std::size_t i = 0; i < products_.size(); ++i)
    if (is_high(i, i == product ? level : std::max(states_[i].level, states_[i].wanted)))
      share += products_[i].share;
  return share;
}

void PrecisionController::move(std::int64_t step, std::size_t product, LevelChange change,
                               std::vector<LevelChange>& done) {
  State& state = states_[product];
  state.locked_until = step + options_.lock;
  state.over_in_row = 0;
  if (change.denied.empty()) {
    state.wanted = change.to;
    if (needs_plan(change.from, change.to)) {
      state.change = std::move(change);
      return;
    }
    state.level = change.to;
  }
  done.push_back(std::move(change));
}

std::vector<LevelChange> PrecisionController::take(std::int64_t step,
                                                   std::span<const ProductMeasure> measures) {
  ANABATIC_CHECK(measures.size() == products_.size(), "[adaptive] {} measures of {} products",
                 measures.size(), products_.size());
  std::vector<std::size_t> lowered, raised;
  std::vector<LevelChange> wishes(products_.size());
  for (std::size_t i = 0; i < products_.size(); ++i) {
    State& state = states_[i];
    note_sample(step, measures[i], state);
    if (step >= state.locked_until && state.level == state.wanted) {
      wishes[i] = wish(step, i, measures[i]);
      if (wishes[i].to < wishes[i].from) lowered.push_back(i);
      if (wishes[i].to > wishes[i].from) raised.push_back(i);
    }
    state.norm_ratio = 0;
  }
  std::vector<LevelChange> done;
  for (const std::size_t i : lowered) move(step, i, std::move(wishes[i]), done);
  std::ranges::stable_sort(
      raised, [&](std::size_t a, std::size_t b) { return wishes[a].error > wishes[b].error; });
  for (const std::size_t i : raised) {
    const double share = high_share_with(i, wishes[i].to);
    if (is_high(i, wishes[i].to) && share > options_.high_share)
      wishes[i].denied = fmt::format(
          "{:.1f} % of the FLOPs of products would be above int8, and "
          "precision.adaptive.high_share allows {:.1f} %",
          100 * share, 100 * options_.high_share);
    move(step, i, std::move(wishes[i]), done);
  }
  return done;
}

bool PrecisionController::is_plan_due(std::int64_t step) const {
  return (plan_step_ == 0 || step - plan_step_ >= options_.lock) &&
         std::ranges::any_of(states_, [](const State& s) { return s.level != s.wanted; });
}

std::vector<Level> PrecisionController::wanted() const {
  std::vector<Level> levels;
  for (const State& state : states_) levels.push_back(state.wanted);
  return levels;
}

std::vector<LevelChange> PrecisionController::take_plan(std::int64_t step,
                                                        const std::string& refusal) {
  plan_step_ = step;
  std::vector<LevelChange> done;
  for (State& state : states_) {
    if (state.level == state.wanted) continue;
    state.change.step = step;
    state.change.denied = refusal;
    (refusal.empty() ? state.level : state.wanted) = refusal.empty() ? state.wanted : state.level;
    state.locked_until = step + options_.lock;
    state.over_in_row = 0;
    done.push_back(std::exchange(state.change, {}));
  }
  return done;
}

Json PrecisionController::to_json() const {
  Json units = Json::array();
  for (std::size_t i = 0; i < products_.size(); ++i) {
    const State& s = states_[i];
    Json unit{{"name", products_[i].unit},      {"product", products_[i].product},
              {"level", to_string(s.level)},    {"wanted", to_string(s.wanted)},
              {"locked_until", s.locked_until}, {"over_in_row", s.over_in_row},
              {"against", s.against},           {"mean_norm", s.mean_norm},
              {"norm_ratio", s.norm_ratio},     {"num_norms", s.num_norms}};
    if (s.level != s.wanted)
      unit["change"] = {{"reason", s.change.reason},
                        {"error", saved_error(s.change.error)},
                        {"fallback", s.change.fallback},
                        {"norm_ratio", s.change.norm_ratio}};
    units.push_back(std::move(unit));
  }
  return {{"plan_step", plan_step_}, {"units", std::move(units)}};
}

PrecisionController::State PrecisionController::restored(const JsonNode& saved,
                                                         std::size_t product) const {
  const double most = std::numeric_limits<double>::max();
  const auto level_of = [&](std::string_view key) {
    const Level level = level_from_string(saved.at(key).as_string());
    return has_level(product, index(level)) ? level : Level::kInt8;
  };
  State s;
  s.level = level_of("level");
  s.wanted = level_of("wanted");
  s.locked_until = saved.at("locked_until").as_integer(0);
  s.over_in_row = saved.at("over_in_row").as_integer(0);
  s.mean_norm = saved.at("mean_norm").as_number(0, most);
  s.norm_ratio = saved.at("norm_ratio").as_number(0, most);
  s.num_norms = saved.at("num_norms").as_integer(0);
  const std::vector<JsonNode> against = saved.at("against").items();
  ANABATIC_REQUIRE(against.size() == kNumLevels, "adaptive.units: expected {} steps, got {}",
                   kNumLevels, against.size());
  for (std::size_t l = 0; l < kNumLevels; ++l) s.against[l] = against[l].as_integer(0);
  if (s.level == s.wanted) return s;
  const JsonNode change = saved.at("change");
  s.change = {.step = 0,
              .unit = products_[product].unit,
              .product = products_[product].product,
              .from = s.level,
              .to = s.wanted,
              .reason = change.at("reason").as_string(),
              .error = read_error(change.at("error")),
              .fallback = change.at("fallback").as_number(0, most),
              .norm_ratio = change.at("norm_ratio").as_number(0, most)};
  return s;
}

void PrecisionController::restore(const Json& json) {
  const JsonNode node(json, "adaptive");
  plan_step_ = node.at("plan_step").as_integer(0);
  for (const JsonNode& saved : node.at("units").items()) {
    const std::string name = saved.at("name").as_string();
    const std::optional<JsonNode> product = saved.find("product");
    for (std::size_t i = 0; i < products_.size(); ++i) {
      if (products_[i].unit != name || (product && product->as_string() != products_[i].product))
        continue;
      State state = restored(saved, i);
      if (std::min(state.level, state.wanted) >= products_[i].lowest) states_[i] = std::move(state);
    }
  }
}

}  // namespace anabatic::train
