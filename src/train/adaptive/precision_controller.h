// SPDX-License-Identifier: Apache-2.0
// Which precision each unit has in a run with train.precision: adaptive. A pure function of what
// was measured: equal measures give equal decisions, whatever computed them.
//
// A unit is raised where the error of one of its products is above the budget in two samples in a
// row, where more than half of its blocks fall back, or where the norm of its gradient is more than
// four times its running mean. An error raises it to the lowest level whose own error is within the
// budget, the others by one level. It is lowered to the lowest level whose error has been within
// half of the budget for `lock` steps, in which nothing asked for more. A unit that has moved, or
// was denied, stays for `lock` steps.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"

namespace anabatic::train {

// From fast to precise. kWide: int8 products with 16 bits of x in every block.
enum class PrecisionLevel : std::uint8_t { kInt8, kWide, kBf16, kFp32 };
inline constexpr std::size_t kNumLevels = 4;
const char* to_string(PrecisionLevel level);
// InvalidArgument for a word that is none.
PrecisionLevel level_from_string(const std::string& word);

struct AdaptiveOptions {
  double error = 0.02;
  std::int64_t every = 32, lock = 256;
  double high_share = 0.25;
};

// A unit that may move.
struct AdaptiveUnit {
  std::string name;
  PrecisionLevel lowest = PrecisionLevel::kInt8;
  double share = 0;  // of the FLOPs of a step's products
};

// |Y^ - Y| / |Y| of sampled rows of a product at each level, from the same operands.
using LevelErrors = std::array<double, kNumLevels>;

// What a unit was like since the last decision.
struct UnitMeasure {
  LevelErrors errors{};   // of its product with the largest one at each level
  std::string product{};  // the one with the largest error at the level that it has
  double fallback = 0;    // share of blocks of x with 16 bits; 0 where it is not in int8
};

struct LevelChange {
  std::int64_t step = 0;
  std::string unit;
  PrecisionLevel from{}, to{};
  std::string reason;     // "error", "fallback", "gradient norm" or "calm"
  std::string product{};  // that the error is of
  double error = 0, fallback = 0, norm_ratio = 0;
  std::string denied{};  // why it did not happen; empty: it did
};
OrderedJson to_json(const LevelChange& change);

class PrecisionController {
 public:
  // Units begin at their lowest level.
  PrecisionController(AdaptiveOptions options, std::vector<AdaptiveUnit> units);

  const std::vector<AdaptiveUnit>& units() const { return units_; }
  // As the program computes them now.
  PrecisionLevel level(std::size_t unit) const { return states_[unit].level; }

  // After each step: the norm of each unit's gradient; not finite ones are passed over.
  void note_norms(std::span<const double> norms);
  bool is_sampled(std::int64_t step) const { return step % options_.every == 0; }

  // After a step that is sampled. Returns what changes now: moves between kInt8 and kWide, and
  // denials. Others wait for a plan.
  std::vector<LevelChange> take(std::int64_t step, std::span<const UnitMeasure> measures);

  // Whether changes wait for a plan, and one may be made after this step: at most one in `lock`
  // steps.
  bool is_plan_due(std::int64_t step) const;
  // The levels with those changes.
  std::vector<PrecisionLevel> wanted() const;
  // The program has them from here on. Or it does not, for this reason.
  std::vector<LevelChange> take_plan(std::int64_t step, const std::string& refusal);

  // What a resumed run goes on from.
  Json to_json() const;
  // InvalidArgument for what to_json() has not written. Units that are not there, or may not have
  // the level that they had, begin anew.
  void restore(const Json& json);

  static constexpr double kMostFallback = 0.5, kMostNormRatio = 4, kLowerShare = 0.5;
  static constexpr std::int64_t kNormsOfMean = 128;  // most that a running mean looks back
  static constexpr std::int64_t kLeastNorms = 32;    // before a ratio says something

 private:
  struct State {
    PrecisionLevel level{}, wanted{};
    std::int64_t locked_until = 0;  // the first step that may move it
    std::int64_t over_in_row = 0;   // samples with an error above the budget
    // The last step that speaks against each level: its error was above half of the budget, or
    // something asked for more.
    std::array<std::int64_t, kNumLevels> against{};
    double mean_norm = 0, norm_ratio = 0;  // the largest ratio since the last sample
    std::int64_t num_norms = 0;
    LevelChange change{};  // that waits
  };
  void note_sample(std::int64_t step, const UnitMeasure& measure, State& state) const;
  // Where the unit should go, and why; from where it is: nowhere.
  LevelChange wish(std::int64_t step, std::size_t unit, const UnitMeasure& measure) const;
  double high_share_with(std::size_t unit, PrecisionLevel level) const;
  bool is_high(std::size_t unit, PrecisionLevel level) const;
  void move(std::int64_t step, std::size_t unit, LevelChange change,
            std::vector<LevelChange>& done);

  AdaptiveOptions options_;
  std::vector<AdaptiveUnit> units_;
  std::vector<State> states_;
  std::int64_t plan_step_ = 0;  // of the last plan; 0: none yet
};

}  // namespace anabatic::train
