// SPDX-License-Identifier: Apache-2.0
// train.precision: adaptive. The rules of its controller alone, the errors that it samples, and
// whole runs: an outlier is answered and forgotten, and bits depend on what was measured alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "anabatic/error.h"
#include "base/philox.h"
#include "kernels/ref/access.h"
#include "passes/precision/product_units.h"
#include "support/error_message.h"
#include "support/plan_changes.h"
#include "support/sanitized.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "support/trained_run.h"
#include "tensor/panels.h"
#include "tensor/split_float.h"
#include "train/adaptive/run_precision.h"
#include "train/checkpoint/preflight.h"
#include "train/config/precision_keys.h"
#include "train/evaluate.h"
#include "train/record/windows_log.h"
#include "train/trainer.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

using anabatic::testing::json_lines;
using anabatic::testing::message_of;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::trained_bytes;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using enum PrecisionLevel;

constexpr double kBudget = 0.02;

PrecisionController controller(std::vector<double> shares, double high_share = 1) {
  std::vector<AdaptiveProduct> products;
  for (const double share : shares)
    products.push_back({.unit = std::string(1, static_cast<char>('a' + products.size())),
                        .product = "forward",
                        .share = share});
  return {{.error = kBudget, .every = 10, .lock = 40, .high_share = high_share}, products};
}

// All products of one unit, "a".
PrecisionController three_products(double high_share = 1) {
  return {{.error = kBudget, .every = 10, .lock = 40, .high_share = high_share},
          {{.unit = "a", .product = "forward", .share = 0.3},
           {.unit = "a", .product = "input gradient", .reads_x = false, .share = 0.3},
           {.unit = "a", .product = "weight gradient", .share = 0.3}}};
}

// What a product in any level was like.
ProductMeasure measure(double int8, double wide = 0, double bf16 = 0, double fallback = 0) {
  return {.errors = {int8, wide, bf16, 0}, .fallback = fallback};
}
const ProductMeasure kCalm = measure(0.4 * kBudget, 0.3 * kBudget);

std::string moves_of(const std::vector<LevelChange>& changes) {
  std::string text;
  for (const LevelChange& c : changes)
    text += fmt::format("{}{}{} {} {} {}{}", text.empty() ? "" : ", ", c.unit,
                        c.product == "forward" ? "" : "'s " + c.product, to_string(c.from),
                        to_string(c.to), c.reason, c.denied.empty() ? "" : " denied");
  return text;
}
std::string planned(PrecisionController& of, std::int64_t step, const std::string& refusal = "") {
  return of.is_plan_due(step) ? moves_of(of.take_plan(step, refusal)) : "";
}
// And then a plan, where one is due.
std::string taken(PrecisionController& of, std::int64_t step,
                  const std::vector<ProductMeasure>& measures) {
  const std::string at_once = moves_of(of.take(step, measures));
  return at_once + planned(of, step);
}

TEST(PrecisionController, RaisesAfterTwoSamplesAboveTheBudgetToTheLowestLevelWithinIt) {
  PrecisionController of = controller({0.1, 0.1, 0.1, 0.1});
  const std::vector<ProductMeasure> over{measure(1, 0.01), measure(1, 1, 0.01), measure(1, 1, 1),
                                         measure(std::nan(""), std::nan(""), std::nan(""))};
  EXPECT_EQ(moves_of(of.take(10, over)), "");
  EXPECT_EQ(moves_of(of.take(20, over)), "a int8 wide error");
  EXPECT_THAT(of.wanted(), ElementsAre(kWide, kBf16, kFp32, kFp32));
  EXPECT_EQ(of.level(0), kWide);
  EXPECT_EQ(of.level(1), kInt8);  // until there is a plan
  EXPECT_EQ(planned(of, 20), "b int8 bf16 error, c int8 fp32 error, d int8 fp32 error");
  EXPECT_EQ(of.level(1), kBf16);
  PrecisionController once = controller({0.1});
  once.take(10, std::vector{measure(1)});
  once.take(20, std::vector{kCalm});
  EXPECT_EQ(moves_of(once.take(30, std::vector{measure(1)})), "");
}

// Each product goes by its own error. An input gradient does not read x, so it has no wide level.
TEST(PrecisionController, MovesTheProductsOfAUnitByThemselves) {
  PrecisionController of = three_products();
  const std::vector<ProductMeasure> of_dy{kCalm, measure(1, 1, 0.001), kCalm};
  EXPECT_EQ(taken(of, 10, of_dy), "");
  EXPECT_EQ(taken(of, 20, of_dy), "a's input gradient int8 bf16 error");
  EXPECT_THAT(of.wanted(), ElementsAre(kInt8, kBf16, kInt8));
  const std::vector<ProductMeasure> of_x{measure(1, 0), kCalm, measure(1, 0)};
  EXPECT_EQ(taken(of, 30, of_x), "");
  EXPECT_EQ(taken(of, 40, of_x), "a int8 wide error, a's weight gradient int8 wide error");
  const std::vector<ProductMeasure> calm(3, kCalm);
  EXPECT_EQ(taken(of, 50, calm), "");
  EXPECT_EQ(taken(of, 60, calm), "a's input gradient bf16 int8 calm");
  EXPECT_EQ(taken(of, 80, calm), "a wide int8 calm, a's weight gradient wide int8 calm");
  // A norm is of the gradient of the weight, and does not say which product it comes from.
  for (int i = 0; i < 200; ++i) of.note_norms(std::vector{2.0, 2.0, 2.0});
  of.note_norms(std::vector{9.0, 9.0, 9.0});
  EXPECT_EQ(moves_of(of.take(120, calm)),
            "a int8 wide gradient norm, a's weight gradient int8 wide gradient norm");
  EXPECT_EQ(planned(of, 120), "a's input gradient int8 bf16 gradient norm");
}

TEST(PrecisionController, CountsTheFlopsOfProductsThatAreAboveInt8) {
  PrecisionController of = three_products(0.65);
  const std::vector<ProductMeasure> over{measure(0.3, 1), measure(0.1, 1), measure(0.2, 1)};
  of.take(10, over);
  EXPECT_EQ(moves_of(of.take(20, over)), "a's input gradient int8 bf16 error denied");
  EXPECT_EQ(planned(of, 20), "a int8 bf16 error, a's weight gradient int8 bf16 error");
}

TEST(PrecisionController, LowersWhenALevelHasHadHalfOfTheBudgetForLockSteps) {
  PrecisionController of = controller({0.1});
  const auto take = [&](std::int64_t step, const ProductMeasure& of_unit) {
    return taken(of, step, {of_unit});
  };
  const ProductMeasure bad = measure(1, 1, 0.001);
  EXPECT_EQ(take(10, bad), "");
  EXPECT_EQ(take(20, bad), "a int8 bf16 error");
  for (std::int64_t step = 30; step <= 100; step += 10) EXPECT_EQ(take(step, bad), "") << step;
  // In int8 it is within the budget, but not within half of it.
  for (std::int64_t step = 110; step <= 200; step += 10)
    EXPECT_EQ(take(step, measure(0.9 * kBudget, 0.9 * kBudget)), "") << step;
  for (std::int64_t step = 210; step < 240; step += 10) EXPECT_EQ(take(step, kCalm), "") << step;
  EXPECT_EQ(take(240, kCalm), "a bf16 int8 calm");
}

TEST(PrecisionController, KeepsAUnitThatMovedForLockSteps) {
  PrecisionController of = controller({0.1});
  const auto take = [&](std::int64_t step, const ProductMeasure& of_unit) {
    return taken(of, step, {of_unit});
  };
  take(10, measure(1, 0.001));
  EXPECT_EQ(take(20, measure(1, 0.001)), "a int8 wide error");
  for (std::int64_t step = 30; step < 60; step += 10) EXPECT_EQ(take(step, measure(1, 1)), "");
  EXPECT_EQ(take(60, measure(1, 1)), "a wide bf16 error");
}

TEST(PrecisionController, RaisesByOneLevelForFallbacksAndForANormAboveItsMean) {
  PrecisionController of = controller({0.1, 0.1});
  EXPECT_EQ(moves_of(of.take(10, std::vector{measure(0, 0, 0, 0.51), measure(0, 0, 0, 0.5)})),
            "a int8 wide fallback");
  PrecisionController norms = controller({0.1, 0.1});
  for (int i = 0; i < 31; ++i) norms.note_norms(std::vector{2.0, 2.0});
  norms.note_norms(std::vector{100.0, 2.0});  // the mean is not known yet
  EXPECT_EQ(moves_of(norms.take(10, std::vector{kCalm, kCalm})), "");
  for (int i = 0; i < 200; ++i) norms.note_norms(std::vector{2.0, 2.0});
  norms.note_norms(std::vector{2.0, std::nan("")});
  norms.note_norms(std::vector{12.0, 7.9});
  EXPECT_EQ(moves_of(norms.take(20, std::vector{kCalm, kCalm})), "a int8 wide gradient norm");
  EXPECT_EQ(moves_of(norms.take(70, std::vector{kCalm, kCalm})), "a wide int8 calm");
}

TEST(PrecisionController, GivesTheShareToTheLargestErrorsAndDeniesOthers) {
  PrecisionController of = controller({0.2, 0.2, 0.1}, 0.35);
  const std::vector<ProductMeasure> over{measure(0.1, 1), measure(0.3, 1), measure(0.2, 1)};
  of.take(10, over);
  const std::vector<LevelChange> denied = of.take(20, over);
  EXPECT_EQ(moves_of(denied), "a int8 bf16 error denied");
  EXPECT_THAT(denied[0].denied, HasSubstr("50.0 % of the FLOPs of products would be above int8, "
                                          "and precision.adaptive.high_share allows 35.0 %"));
  EXPECT_EQ(planned(of, 20), "b int8 bf16 error, c int8 bf16 error");
  // 16 bits of x are still int8.
  PrecisionController wide = controller({0.5, 0.5}, 0);
  const std::vector<ProductMeasure> by_x{measure(1, 0), measure(1, 0)};
  wide.take(10, by_x);
  EXPECT_EQ(moves_of(wide.take(20, by_x)), "a int8 wide error, b int8 wide error");
}

TEST(PrecisionController, GathersChangesIntoOnePlanInLockSteps) {
  PrecisionController of = controller({0.1, 0.1});
  const ProductMeasure bad = measure(1, 1);
  of.take(10, std::vector{bad, kCalm});
  of.take(20, std::vector{bad, kCalm});
  EXPECT_EQ(planned(of, 20), "a int8 bf16 error");
  of.take(30, std::vector{kCalm, bad});
  of.take(40, std::vector{kCalm, bad});
  EXPECT_THAT(of.wanted(), ElementsAre(kBf16, kBf16));
  for (std::int64_t step = 40; step < 60; ++step) EXPECT_FALSE(of.is_plan_due(step));
  EXPECT_EQ(planned(of, 60, "no memory"), "b int8 bf16 error denied");
  EXPECT_EQ(of.level(1), kInt8);
  EXPECT_FALSE(of.is_plan_due(1000));
}

// At any place, also with a change that waits for a plan.
TEST(PrecisionController, GoesOnFromItsSavedState) {
  const auto run = [](std::int64_t restored_after) {
    PrecisionController of = controller({0.2, 0.3, 0.5}, 0.6);
    std::string text;
    for (std::int64_t step = 1; step <= 600; ++step) {
      const auto draw = [&](std::uint64_t i) {
        return random_uniform(1, i, static_cast<std::uint64_t>(step / 50));
      };
      of.note_norms(std::vector{draw(0) < 0.1 ? 9.0 : 1.0, 1.0 + draw(1), 1e-3});
      if (of.is_sampled(step)) {
        std::vector<ProductMeasure> measures;
        for (std::uint64_t i = 0; i < 3; ++i)
          measures.push_back(measure(0.04 * draw(2 + i), 0.03 * draw(2 + i), 0.025 * draw(5 + i),
                                     draw(8 + i) < 0.1 ? 1 : 0));
        text += taken(of, step, measures) + ";";
      }
      if (step != restored_after) continue;
      const Json saved = Json::parse(of.to_json().dump());
      of = controller({0.2, 0.3, 0.5}, 0.6);
      of.restore(saved);
    }
    return text;
  };
  const std::string want = run(0);
  EXPECT_THAT(want, HasSubstr("calm"));
  EXPECT_THAT(want, HasSubstr("error"));
  for (const std::int64_t step : {1, 10, 55, 120, 121, 233, 377, 599}) EXPECT_EQ(run(step), want);
}

// What names no product is of all products of its unit.
TEST(PrecisionController, ReadsStatesOfWholeUnits) {
  PrecisionController unit = controller({0.9});
  taken(unit, 10, {measure(1, 1, 0)});
  EXPECT_EQ(taken(unit, 20, {measure(1, 1, 0)}), "a int8 bf16 error");
  Json saved = unit.to_json();
  for (Json& of_unit : saved["units"]) of_unit.erase("product");
  PrecisionController of = three_products();
  of.restore(saved);
  EXPECT_THAT(of.wanted(), ElementsAre(kBf16, kBf16, kBf16));
  for (Json& of_unit : saved["units"]) of_unit["level"] = of_unit["wanted"] = "wide";
  of.restore(saved);
  EXPECT_THAT(of.wanted(), ElementsAre(kWide, kInt8, kWide));
  saved["units"][0]["level"] = "int4";
  EXPECT_THAT(message_of<InvalidArgument>([&] { of.restore(saved); }),
              HasSubstr("expected int8, wide, bf16 or fp32, got 'int4'"));
}

RunConfig adaptive_run(const std::filesystem::path& folder) {
  RunConfig run =
      anabatic::testing::tiny_run(folder, R"("hidden_size": 64, "intermediate_size": 96)");
  run.train.precision = "adaptive";
  run.train.steps = 24;
  run.data.sequence_length = 32;
  run.optimizer.schedule = "constant";
  run.precision.adaptive = {.error = 0.04, .every = 2, .lock = 8, .high_share = 0.5};
  return run;
}

std::vector<std::string> changes_of(const RunConfig& run) {
  std::vector<std::string> lines;
  for (const auto& line : json_lines(std::filesystem::path(run.train.output) / kAdaptiveFile))
    lines.push_back(fmt::format("{} {} {} {} {} {}", line["step"].get<std::int64_t>(),
                                line["unit"].get<std::string>(), line["product"].get<std::string>(),
                                line["from"].get<std::string>(), line["to"].get<std::string>(),
                                line["reason"].get<std::string>()));
  return lines;
}

// Element i of a parameter, whether it is whole or in upper and lower bits.
void set_element(Trainer& trainer, const std::string& name, std::int64_t i, float value) {
  runtime::StateStore& store = trainer.session().store();
  const TensorView whole = store.find(intern(name));
  const std::int64_t at = element_offset(*whole.type, i);
  if (whole.type->dtype == DType::kFloat32) {
    whole.as<float>()[at] = value;
  } else {
    const SplitFloat parts = split_float(value);
    whole.as<BFloat16>()[at] = parts.high;
    store.find(intern("low." + name)).as<std::uint16_t>()[at] = parts.low;
  }
  trainer.session().refresh_derived();
}

constexpr const char* kUnit = "layers.0.attention.q";

// A weight of q that no result depends on, so it may have any size. But a large one takes the bits
// of all others in its tile.
void plant(Trainer& trainer, float value) {
  set_element(trainer, std::string(kUnit) + ".weight", 3, value);
}
// Channel 3 of q's input is 0: the forward is off by what the tile lost. In the input gradient
// the large element itself is most of the result.
void silence_input(Trainer& trainer) {
  set_element(trainer, "layers.0.attention_norm.weight", 3, 0);
}
// Channel 0 of q and the one that it turns with meet keys of 0. So their gradients are 0: the
// input gradient is off by what the tile lost. In the forward the large element is most of it. The
// large queries make large gradients of these keys, which take the bits of others in their blocks.
void silence_gradient(Trainer& trainer, std::int64_t width, std::int64_t head_dim) {
  for (const std::int64_t row : {std::int64_t{0}, head_dim / 2})
    for (std::int64_t i = 0; i < width; ++i)
      set_element(trainer, "layers.0.attention.k.weight", row * width + i, 0);
}

// The outlier is answered by these products of layer 0 and forgotten, and all others stay as they
// are.
void expect_raised_and_lowered(void (*silence)(Trainer&), std::vector<std::string> products) {
  const TemporaryDirectory folder;
  RunConfig run = adaptive_run(folder.path());
  run.optimizer.learning_rate = 1e-12;  // weights stay
  Trainer trainer(run);
  silence(trainer);
  const auto step_to = [&](std::int64_t last) {
    std::optional<StepMetrics> metrics;
    do metrics = trainer.step();
    while (metrics->step < last);
    return *metrics;
  };
  const auto raised = [&] {
    std::vector<std::string> names;
    for (const spec::RaisedProduct& of : trainer.session().run().precision.raised)
      names.push_back(fmt::format("{} {} {}", of.weight, passes::to_string(of.role),
                                  of.precision == spec::Precision::kBf16 ? "bf16" : "fp32"));
    return names;
  };
  step_to(4);
  EXPECT_THAT(changes_of(run), ElementsAre());
  plant(trainer, 1000);
  step_to(8);  // two samples later
  std::vector<std::string> in_bf16, changes;
  for (const std::string& product : products) {
    in_bf16.push_back(fmt::format("layers.0.{} bf16", product));
    changes.push_back(fmt::format("8 layers.0.{} int8 bf16 error", product));
  }
  EXPECT_EQ(changes_of(run), changes);
  EXPECT_EQ(raised(), in_bf16);
  for (const auto& line : json_lines(std::filesystem::path(run.train.output) / kAdaptiveFile))
    if (line["unit"] == kUnit) {
      EXPECT_GT(line["error"].get<double>(), 0.9);  // nothing else of the tile is left
    }
  step_to(14);
  EXPECT_EQ(changes_of(run), changes);  // within the budget
  plant(trainer, 0.1f);
  step_to(24);
  for (const std::string& product : products)
    changes.push_back(fmt::format("22 layers.0.{} bf16 int8 calm", product));
  EXPECT_EQ(changes_of(run), changes);
  EXPECT_THAT(raised(), ElementsAre());
}

TEST(AdaptiveTraining, RaisesAForwardWithAnOutlierAndLowersItAfterwards) {
  expect_raised_and_lowered(silence_input, {"attention.q forward"});
}

TEST(AdaptiveTraining, RaisesAnInputGradientWithAnOutlierAndLowersItAfterwards) {
  expect_raised_and_lowered([](Trainer& trainer) { silence_gradient(trainer, 64, 16); },
                            {"attention.k input gradient", "attention.q input gradient"});
}

// A budget that int8 exceeds in some units: there are changes with and without a plan.
RunConfig changing_run(const std::filesystem::path& folder) {
  RunConfig run = adaptive_run(folder);
  run.train.steps = 8;
  run.optimizer.learning_rate = 0.01;
  run.precision.adaptive = {.error = 0.0115, .every = 2, .lock = 4, .high_share = 0.2};
  return run;
}

// Units of which some products went above int8, and not all.
std::int64_t num_mixed(const std::vector<std::string>& changes) {
  std::map<std::string, std::int64_t> raised;
  for (const std::string& change : changes) {
    const std::string unit = change.substr(change.find(' ') + 1);
    if (change.find(" bf16 error") != std::string::npos && unit.find("head") == std::string::npos)
      ++raised[unit.substr(0, unit.find(' '))];
  }
  return std::ranges::count_if(raised, [](const auto& of) { return of.second < 3; });
}

TEST(AdaptiveTraining, HasEqualBitsHoweverItIsPlanned) {
  const TemporaryDirectory folder;
  const RunConfig base = changing_run(folder.path());
  const std::string want = trained_bytes(base);
  const std::vector<std::string> changes = changes_of(base);
  EXPECT_THAT(changes, Contains(HasSubstr("int8 bf16 error")));
  EXPECT_GT(num_mixed(changes), 0);
  int number = 0;
  for (const anabatic::testing::PlanChange& change : anabatic::testing::plan_changes()) {
    RunConfig run = base;
    run.train.output = folder.path() / std::to_string(number++);
    change.apply(run);
    if (run.memory.optimizer_state == "disk") continue;  // refused
    EXPECT_TRUE(trained_bytes(run) == want) << change.name;
    EXPECT_EQ(changes_of(run), changes) << change.name;
  }
}

// In bf16, whatever the levels of units.
TEST(AdaptiveTraining, ValidatesTheModelThatItSaves) {
  const TemporaryDirectory folder;
  RunConfig run = adaptive_run(folder.path());
  run.precision.adaptive = {.error = 1e-6, .every = 1, .lock = 2, .high_share = 0.7};
  run.train.steps = 6;
  run.train.save_dtype = "fp32";
  run.data.validation = {anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
  const TrainResult trained = Trainer(run).train();
  EXPECT_THAT(changes_of(run), Contains(HasSubstr(" fp32 error")));
  RunConfig saved = run;
  saved.model.path = trained.checkpoint;
  saved.model.init = "pretrained";
  saved.train.precision = "bf16";
  saved.precision = {};
  EXPECT_EQ(trained.after->loss, evaluate(saved).loss);
}

TEST(AdaptiveTraining, ResumesWithEqualBits) {
  const TemporaryDirectory folder;
  RunConfig run = changing_run(folder.path());
  run.train.save_every = 1;
  run.train.keep_last = 0;
  const std::string want = trained_bytes(run);
  const std::vector<std::string> changes = changes_of(run);
  EXPECT_GT(changes.size(), 1u);
  for (const std::int64_t step : {3, 4}) {
    anabatic::testing::go_back_to(run.train.output, step);
    EXPECT_TRUE(trained_bytes(run) == want) << step;
    EXPECT_EQ(changes_of(run), changes) << step;
  }
}

// Sampling looks alone, and a budget that nothing exceeds changes nothing.
TEST(AdaptiveTraining, HasTheBitsOfInt8WhereNothingIsAboveTheBudget) {
  const TemporaryDirectory folder;
  RunConfig run = adaptive_run(folder.path());
  run.train.steps = 6;
  run.precision.adaptive.error = 1;
  const std::string adaptive = trained_bytes(run);
  EXPECT_THAT(changes_of(run), ElementsAre());
  run.train.precision = "int8";
  run.precision.adaptive = {};
  run.train.output += "_int8";
  EXPECT_TRUE(trained_bytes(run) == adaptive);
}

// Units that keys name stay where they are, whatever their errors.
TEST(AdaptiveTraining, LeavesCriticalAndKeptUnitsAlone) {
  const TemporaryDirectory folder;
  RunConfig run = adaptive_run(folder.path());
  run.train.steps = 8;
  run.precision.adaptive = {.error = 1e-6, .every = 2, .lock = 4, .high_share = 1};
  run.precision.keep = {{"experts", "int8"}};
  run.precision.critical = {"attention.o"};
  Trainer trainer(run);
  trainer.train();
  const std::vector<std::string> changes = changes_of(run);
  EXPECT_THAT(changes, Contains(HasSubstr("attention.q forward int8")));
  EXPECT_THAT(changes, Not(Contains(HasSubstr("experts"))));
  EXPECT_THAT(changes, Not(Contains(HasSubstr("attention.o"))));
}

// The error of all elements of what the kernels of one unit gave.
struct WholeErrors {
  const ProductCalls& calls;
  TensorView weight;
  std::size_t unit;
  std::map<spec::ProductRole, double> errors{};

  static void on_call(void* context, const runtime::CallEvent& event) {
    auto& self = *static_cast<WholeErrors*>(context);
    for (const ProductCall& call : self.calls.calls())
      if (call.call == event.index && call.operands.size() == 1 &&
          call.operands[0].unit == self.unit)
        self.errors[call.role] = self.error_of(call.role, event);
  }
  double error_of(spec::ProductRole role, const runtime::CallEvent& event) const {
    using kernels::ref::load;
    const std::int64_t out = weight.type->dim(0), in = weight.type->dim(1),
                       rows = event.inputs[0].type->dim(0);
    const auto at = [](const TensorView& view, std::int64_t i, std::int64_t j) {
      return load(view, i * view.type->dim(-1) + j);
    };
    const auto sum = [](std::int64_t count, auto&& term) {
      double total = 0;
      for (std::int64_t i = 0; i < count; ++i) total += term(i);
      return total;
    };
    const TensorView& a = event.inputs[0];
    double error = 0, norm = 0;
    const TensorView& y = event.outputs[0];
    for (std::int64_t i = 0; i < y.type->dim(0); ++i)
      for (std::int64_t j = 0; j < y.type->dim(1); ++j) {
        const double want =
            role == spec::ProductRole::kForward
                ? sum(in, [&](std::int64_t k) { return at(a, i, k) * at(weight, j, k); })
            : role == spec::ProductRole::kInputGradient
                ? sum(out, [&](std::int64_t n) { return at(a, i, n) * at(weight, n, j); })
                : sum(rows,
                      [&](std::int64_t t) { return at(event.inputs[1], t, i) * at(a, t, j); });
        error += (at(y, i, j) - want) * (at(y, i, j) - want);
        norm += want * want;
      }
    return std::sqrt(error / norm);
  }
};

// Samples by the definition, next to all elements that the program computed, whose products of one
// unit have these levels. `formats`: what the start of a run says of the unit.
void expect_sampled_errors(const std::array<PrecisionLevel, 3>& levels,
                           const std::vector<std::string>& formats) {
  const TemporaryDirectory folder;
  RunConfig run = adaptive_run(folder.path());
  const std::string name = "layers.1.attention.o";
  for (std::size_t i = 0; i < levels.size(); ++i)
    if (levels[i] != kInt8)
      run.precision.raised.push_back(
          {name, kProductRoles[i],
           levels[i] == kFp32 ? spec::Precision::kFp32 : spec::Precision::kBf16});
  ModelSession session(run, false);
  const std::unique_ptr<BoundProgram> program = bind_training(session);
  session.load_parameters();
  session.refresh_derived();
  const std::string said = product_formats_to_string(run, program->compiled.graph);
  for (const std::string& format : formats)
    EXPECT_THAT(said, ::testing::ContainsRegex("products in " + format));
  const ProductCalls calls(program->compiled);
  const auto unit = static_cast<std::size_t>(
      std::ranges::find(calls.units(), name, &ProductUnit::name) - calls.units().begin());
  ASSERT_LT(unit, calls.units().size());
  SampledErrors sampled(*program, calls, session.store(), session.team(), 64, 1);
  WholeErrors whole{calls, session.store().find(intern(name + ".weight")), unit};
  program->executor->observe({.on_call = WholeErrors::on_call, .context = &whole});
  sampled.begin(1);
  const io::StepBatch batch = random_step(session.run(), session.config(), 1);
  run_training_step(*program, batch, totals_of(batch), {.learning_rate = 0},
                    [](const io::MicroBatch&) {});
  sampled.end();
  ASSERT_EQ(whole.errors.size(), 3u);
  for (const auto& [role, want] : whole.errors) {
    const auto got = sampled.errors(unit, role);
    ASSERT_TRUE(got.has_value());
    const auto [int8, wide, bf16, fp32] = *got;
    const bool rounds = role != spec::ProductRole::kWeightGradient;  // results to bf16
    const PrecisionLevel level = levels[static_cast<std::size_t>(role)];
    EXPECT_EQ(calls.units()[unit].product(role).is_int8, level == kInt8);
    EXPECT_LE(wide, int8);
    EXPECT_LT(bf16, int8);
    EXPECT_LE(fp32, bf16);
    EXPECT_EQ(fp32 > 0, rounds);
    EXPECT_GT(want, 0);
    if (level == kFp32 || !rounds) {  // the call itself does not round its result
      EXPECT_LT(want, level == kInt8 ? 2 * int8 : int8 / 100) << static_cast<int>(role);
      EXPECT_LT(level == kInt8 ? int8 : 0, 2 * want) << static_cast<int>(role);
    } else {
      EXPECT_LT(level == kInt8 ? int8 : bf16, 2 * want) << static_cast<int>(role);
      EXPECT_LT(want, 2 * (level == kInt8 ? int8 : bf16)) << static_cast<int>(role);
    }
  }
}

TEST(AdaptiveTraining, SamplesTheErrorsThatTheKernelsHave) {
  const auto raised = [](const std::string& format, const std::string& products) {
    return fmt::format(
        "{}:.*layers.1.attention.o .{}: its error was above precision.adaptive.error", format,
        products);
  };
  expect_sampled_errors({kInt8, kInt8, kInt8}, {"int8:.*layers.N.attention.o,"});
  expect_sampled_errors({kBf16, kInt8, kInt8}, {raised("bf16", "forward")});
  expect_sampled_errors({kInt8, kBf16, kFp32},
                        {raised("bf16", "input gradient"), raised("fp32", "weight gradient")});
  expect_sampled_errors({kFp32, kInt8, kBf16},
                        {raised("fp32", "forward"), raised("bf16", "weight gradient")});
  expect_sampled_errors({kInt8, kFp32, kInt8}, {raised("fp32", "input gradient")});
  expect_sampled_errors({kFp32, kFp32, kInt8}, {raised("fp32", "forward, input gradient"),
                                                "int8:.*layers.1.attention.o .weight gradient."});
}

TEST(AdaptiveTraining, CountsEveryUnitAlikeForAnyThreads) {
  const TemporaryDirectory folder;
  RunConfig run = adaptive_run(folder.path());
  run.train.precision = "int8";
  run.precision.adaptive = {};
  run.train.steps = 2;
  const auto counts = [&](int threads, const std::string& name) {
    run.train.output = folder.path() / name;
    run.device.threads = threads;
    Trainer trainer(run);
    trainer.step();
    return *trainer.step();
  };
  const StepMetrics one = counts(1, "one"), two = counts(2, "two");
  ASSERT_GT(one.int8.size(), 10u);
  ASSERT_EQ(one.int8.size(), two.int8.size());
  for (std::size_t i = 0; i < one.int8.size(); ++i) {
    EXPECT_EQ(one.int8[i].unit, two.int8[i].unit);
    EXPECT_EQ(one.int8[i].largest, two.int8[i].largest);
    EXPECT_EQ(one.int8[i].zeroed, two.int8[i].zeroed);
    EXPECT_EQ(one.int8[i].fallback, two.int8[i].fallback);
    EXPECT_GT(one.int8[i].largest, 0) << one.int8[i].unit;
    EXPECT_EQ(one.int8[i].of_gradient && one.int8[i].fallback > 0, false);
  }
  EXPECT_GT(*one.int8_zeroed, 0);
  EXPECT_LT(*one.int8_zeroed, 0.1);
  const auto lines = json_lines(std::filesystem::path(run.train.output) / "metrics.jsonl");
  EXPECT_EQ(lines[1]["int8_zeroed"], *two.int8_zeroed);
  EXPECT_EQ(lines[1]["int8_fallback"], *two.int8_fallback);
  const auto windows = json_lines(std::filesystem::path(run.train.output) / "windows.jsonl");
  EXPECT_EQ(windows.back()["int8"][one.int8[0].unit]["input"]["largest"], one.int8[0].largest);
  // What is estimated for a line holds it, and is not far from it.
  std::set<std::string> units;
  for (const Int8Counts& of : one.int8) units.insert(of.unit);
  const auto estimated = [&](std::size_t num_units) {
    return WindowsLog::estimate_bytes(1, 0, static_cast<std::int64_t>(num_units));
  };
  const auto size = static_cast<std::int64_t>(windows.back()["int8"].dump().size());
  EXPECT_GE(estimated(units.size()) - estimated(0), size);
  EXPECT_LE(estimated(units.size()) - estimated(0), 2 * size);
  EXPECT_GT(estimate_log_bytes(10, 2, 4, 1, 5), estimate_log_bytes(10, 2, 4, 1, 0));
}

TEST(AdaptiveTraining, IsRefusedByTheNamesOfKeys) {
  const auto problems = [](Overrides overrides) {
    overrides.emplace("train.precision", std::vector<std::string>{"adaptive"});
    return message_of<InvalidArgument>([&] { load_run_config("", overrides); });
  };
  EXPECT_THAT(problems({{"precision.int8.fallback", {"off"}}}),
              HasSubstr("precision.int8.fallback: expected a number, of which 127 is nearest to "
                        "off, with train.precision: adaptive, got off"));
  EXPECT_THAT(problems({{"parallel.local_ranks", {"2"}}}),
              HasSubstr("parallel.local_ranks: expected 1 with train.precision: adaptive, got 2"));
  EXPECT_THAT(problems({{"precision.adaptive.error", {"0"}}}),
              HasSubstr("precision.adaptive.error: expected a number in ["));
  EXPECT_THAT(problems({{"precision.adaptive.every", {"0"}}}),
              HasSubstr("precision.adaptive.every: expected an integer >= 1, got 0"));
  EXPECT_THAT(problems({{"memory.optimizer_state", {"disk"}}}),
              HasSubstr("memory.optimizer_state: expected resident or auto with train.precision: "
                        "adaptive, got disk"));
  EXPECT_THAT(problems({{"lora.targets", {"all"}}}),
              HasSubstr("train.precision: expected bf16 or int8 with lora, got adaptive"));
  EXPECT_THAT(
      message_of<InvalidArgument>([&] {
        load_run_config("", {{"train.precision", {"int8"}}, {"precision.adaptive.every", {"7"}}});
      }),
      HasSubstr("precision.adaptive: expected train.precision: adaptive with its keys, got "
                "int8"));
}

}  // namespace
}  // namespace anabatic::train
