// SPDX-License-Identifier: Apache-2.0
// Which precision each product of a unit has in a run with train.precision: adaptive: forward,
// input gradient and weight gradient by themselves. A pure function of what was measured: equal
// measures give equal decisions, whatever computed them.
//
// A product is raised where its error is above the budget in two samples in a row, where more than
// half of its blocks fall back, or where the norm of its unit's gradient is more than four times
// its running mean. An error raises it to the lowest level whose own error is within the budget,
// the others by one level. It is lowered to the lowest level whose error has been within half of
// the budget for `lock` steps, in which nothing asked for more. A product that has moved, or was
// denied, stays for `lock` steps.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/json_node.h"

namespace anabatic::train {

// From fast to precise. kWide: int8 products with 16 bits of x in every block; an input gradient
// does not read x, and has no such level.
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

// A product that may move.
struct AdaptiveProduct {
  std::string unit;
  std::string product;  // "forward", "input gradient", "weight gradient" or, of a head, "all"
  PrecisionLevel lowest = PrecisionLevel::kInt8;
  bool reads_x = true;  // has kWide
  double share = 0;     // of the FLOPs of a step's products
};

// |Y^ - Y| / |Y| of sampled rows of a product at each level, from the same operands.
using LevelErrors = std::array<double, kNumLevels>;

// What a product was like since the last decision.
struct ProductMeasure {
  LevelErrors errors{};
  double fallback = 0;  // share of blocks of x with 16 bits; 0 where none is counted
};

struct LevelChange {
  std::int64_t step = 0;
  std::string unit, product;
  PrecisionLevel from{}, to{};
  std::string reason;  // "error", "fallback", "gradient norm" or "calm"
  double error = 0, fallback = 0, norm_ratio = 0;
  std::string denied{};  // why it did not happen; empty: it did
};
OrderedJson to_json(const LevelChange& change);

class PrecisionController {
 public:
  // Products begin at their lowest level.
  PrecisionController(AdaptiveOptions options, std::vector<AdaptiveProduct> products);

  const std::vector<AdaptiveProduct>& products() const { return products_; }
  // As the program computes them now.
  PrecisionLevel level(std::size_t product) const { return states_[product].level; }

  // After each step: the norm of the gradient of each product's unit; not finite ones are passed
  // over.
  void note_norms(std::span<const double> norms);
  bool is_sampled(std::int64_t step) const { return step % options_.every == 0; }

  // After a step that is sampled. Returns what changes now: moves between kInt8 and kWide, and
  // denials. Others wait for a plan.
  std::vector<LevelChange> take(std::int64_t step, std::span<const ProductMeasure> measures);

  // Whether changes wait for a plan, and one may be made after this step: at most one in `lock`
  // steps.
  bool is_plan_due(std::int64_t step) const;
  // The levels with those changes.
  std::vector<PrecisionLevel> wanted() const;
  // The program has them from here on. Or it does not, for this reason.
  std::vector<LevelChange> take_plan(std::int64_t step, const std::string& refusal);

  // What a resumed run goes on from.
  Json to_json() const;
  // InvalidArgument for what to_json() has not written. Products that are not there, or may not
  // have the level that they had, begin anew. What names no product is of all those of its unit.
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
  void note_sample(std::int64_t step, const ProductMeasure& measure, State& state) const;
  bool has_level(std::size_t product, std::size_t level) const;
  PrecisionLevel next(std::size_t product, PrecisionLevel level) const;
  // Where the product should go, and why; from where it is: nowhere.
  LevelChange wish(std::int64_t step, std::size_t product, const ProductMeasure& measure) const;
  double high_share_with(std::size_t product, PrecisionLevel level) const;
  bool is_high(std::size_t product, PrecisionLevel level) const;
  void move(std::int64_t step, std::size_t product, LevelChange change,
            std::vector<LevelChange>& done);
  State restored(const JsonNode& saved, std::size_t product) const;

  AdaptiveOptions options_;
  std::vector<AdaptiveProduct> products_;
  std::vector<State> states_;
  std::int64_t plan_step_ = 0;  // of the last plan; 0: none yet
};

}  // namespace anabatic::train
