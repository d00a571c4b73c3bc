// SPDX-License-Identifier: Apache-2.0
// Steps that recompute values, chosen by hint or by budget: equal bits, less memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "analysis/rebuild.h"
#include "base/philox.h"
#include "device/topology.h"
#include "model/model.h"
#include "plan/budget_error.h"
#include "plan/memory_decider.h"
#include "plan/memory_menu.h"
#include "plan/training_fixture.h"
#include "support/tiny_run.h"

namespace anabatic::testing {
namespace {

using ::testing::HasSubstr;

StepsOptions options_for(const char* kernels, lower::Precision precision) {
  StepsOptions options;
  options.compile.only_kernels = kernels;
  options.compile.precision = precision;
  options.compile.micro_batches = 1;
  options.executor.poison = true;
  options.end_micro_batch = 1;
  options.end_step = 3;
  return options;
}

lower::Compiled compiled(const lower::CompileOptions& options, int num_layers = 2) {
  return lower::compile(tied_moe_graph(num_layers), options, device::describe_cpu(1));
}

std::vector<std::string> saved_keys(const lower::CompileOptions& options) {
  const lower::Compiled whole = compiled(options);
  std::vector<std::string> keys;
  const analysis::Rebuilder rebuilder(whole.graph);
  for (const analysis::SavedValue& saved : rebuilder.saved()) keys.push_back(saved.key);
  return keys;
}

// Keys of the item that a choice took.
std::vector<std::string> keys_of(const std::string& name, const lower::Compiled& got) {
  const lower::Compiled whole = compiled({.precision = lower::Precision::kBf16,
                                          .pack_transposed = got.memory.decisions.pack_transposed});
  const spec::DeviceSpec device = plan::with_peaks(device::describe_cpu(1));
  const plan::OpEfficiency efficiency = plan::default_efficiency();
  const plan::MemoryMenu menu(whole.graph, whole.plan, device, efficiency);
  for (const plan::MenuItem& item : menu.items())
    if (item.name == name) return item.keys;
  return {};
}

TEST(Recompute, GivesEqualBitsForEveryValueAloneAndForRandomSets) {
  for (const char* kernels : {"ref", ""})
    for (auto precision : {lower::Precision::kFp32, lower::Precision::kBf16}) {
      StepsOptions options = options_for(kernels, precision);
      const StepsResult want = run_steps(tied_moe_graph(2), options);
      const std::vector<std::string> keys = saved_keys(options.compile);
      ASSERT_GT(keys.size(), 10u);
      for (const std::string& key : keys) {
        options.compile.memory.recompute = {key};
        EXPECT_EQ(run_steps(tied_moe_graph(2), options).states, want.states) << key;
      }
      for (std::uint64_t seed = 0; seed < 6; ++seed) {
        options.compile.memory.recompute.clear();
        for (std::size_t i = 0; i < keys.size(); ++i)
          if (seed == 0 || random_below(seed, 0, i, 2) == 0)
            options.compile.memory.recompute.push_back(keys[i]);
        const StepsResult got = run_steps(tied_moe_graph(2), options);
        EXPECT_EQ(got.losses, want.losses) << seed;
        EXPECT_EQ(got.states, want.states) << seed;
      }
    }
}

// Products of experts are recomputed with their biases, or leave their operands in int8.
TEST(Recompute, GivesEqualBitsWithBiasesOfExperts) {
  const ir::Graph graph = moe_graph(2, false, "swiglu_clamped", true);
  StepsOptions options = options_for("", lower::Precision::kBf16);
  const StepsResult want = run_steps(graph, options);
  const lower::Compiled whole = lower::compile(graph, options.compile, device::describe_cpu(1));
  std::vector<std::string> keys, products;
  const analysis::Rebuilder rebuilder(whole.graph);
  for (const analysis::SavedValue& saved : rebuilder.saved()) {
    keys.push_back(saved.key);
    const ir::Node& node = whole.graph.node(whole.graph.value(saved.value).producer);
    if (analysis::keeps_products(node) && saved.value != node.outputs[0])
      products.push_back(saved.key);
  }
  ASSERT_EQ(products.size(), 4u);
  for (const std::string& key : products) {
    options.compile.memory.recompute = {key};
    EXPECT_EQ(run_steps(graph, options).states, want.states) << key;
  }
  options.compile.memory.recompute = keys;
  EXPECT_EQ(run_steps(graph, options).states, want.states);
  options.compile.memory.recompute.clear();
  options.compile.memory.compression = {.allowed = spec::SavedForm::kInt8, .min_bytes = 0};
  options.compile.memory.compress = products;
  const lower::Compiled in_int8 = lower::compile(graph, options.compile, device::describe_cpu(1));
  EXPECT_TRUE(
      std::any_of(in_int8.graph.nodes.begin(), in_int8.graph.nodes.end(), [](const ir::Node& node) {
        return node.op->name == "grouped_linear_activation_with_codes";
      }));
  const StepsResult in_product = run_steps(graph, options);
  options.compile.disabled_passes = {"quantize_in_product"};
  EXPECT_EQ(run_steps(graph, options).states, in_product.states);
}

TEST(Recompute, GivesEqualBitsOverSeveralMicroBatchesAndWithTrivialPlanners) {
  StepsOptions options = options_for("", lower::Precision::kBf16);
  options.compile.micro_batches = 0;
  options.end_micro_batch = 3;
  const StepsResult want = run_steps(tied_moe_graph(2), options);
  options.compile.memory.recompute = saved_keys(options.compile);
  EXPECT_EQ(run_steps(tied_moe_graph(2), options).states, want.states);
  options.compile.trivial_planners = true;
  EXPECT_EQ(run_steps(tied_moe_graph(2), options).states, want.states);
}

TEST(Recompute, SharesTheFrameWithGradientsOfASingleMicroBatch) {
  for (auto precision : {lower::Precision::kFp32, lower::Precision::kBf16}) {
    StepsOptions options = options_for("", precision);
    const StepsResult shared = run_steps(tied_moe_graph(2), options);
    options.compile.micro_batches = 0;
    const StepsResult apart = run_steps(tied_moe_graph(2), options);
    EXPECT_EQ(shared.losses, apart.losses);
    EXPECT_EQ(shared.states, apart.states);
    EXPECT_LT(shared.peak_bytes, apart.peak_bytes);
  }
}

TEST(Recompute, KeepsEveryBudgetThatItAccepts) {
  lower::CompileOptions compile = options_for("", lower::Precision::kBf16).compile;
  compile.micro_batches = 0;
  const lower::Compiled whole = compiled(compile, 4);
  lower::CompileOptions all = compile;
  for (const char* segment : {"experts", "mlp", "router"}) {
    const analysis::Rebuilder rebuilder(whole.graph);
    for (const analysis::SavedValue& saved : rebuilder.saved())
      if (saved.key.find(segment) != std::string::npos) all.memory.recompute.push_back(saved.key);
  }
  const std::int64_t most = whole.plan.peak_bytes(), least = compiled(all, 4).plan.peak_bytes();
  ASSERT_LT(least, most);
  double before = -1;
  for (int i = 8; i >= 0; --i) {
    compile.memory.budget_bytes = least + (most - least) * i / 8;
    const lower::Compiled got = compiled(compile, 4);
    EXPECT_LE(got.plan.peak_bytes(), compile.memory.budget_bytes) << i;
    EXPECT_GE(got.memory.added_seconds, before) << i;
    before = got.memory.added_seconds;
  }
  EXPECT_GT(before, 0);
}

TEST(Recompute, MakesNothingAgainThatTheBudgetHasRoomFor) {
  lower::CompileOptions compile = options_for("", lower::Precision::kBf16).compile;
  compile.micro_batches = 0;
  lower::CompileOptions all = compile;
  all.memory.recompute = saved_keys(compile);
  const std::int64_t most = compiled(compile).plan.peak_bytes(),
                     least = compiled(all).plan.peak_bytes();
  ASSERT_LT(least, most);
  int num_choices = 0;
  for (int i = 4; i < 20; i += 3) {
    const std::int64_t budget = least + (most - least) * i / 20;
    compile.memory = {.budget_bytes = budget};
    const lower::Compiled got = compiled(compile);
    for (const plan::PricedChoice& choice : got.memory.choices) {
      compile.memory = {.replay = got.memory.decisions};
      for (const std::string& key : keys_of(choice.name, got))
        compile.memory.replay->recompute.erase(key);
      const lower::Compiled fewer = compiled(compile);
      ++num_choices;
      EXPECT_TRUE(fewer.plan.peak_bytes() > budget ||
                  fewer.memory.added_seconds > got.memory.added_seconds)
          << i << ": " << choice.name;
    }
  }
  EXPECT_GT(num_choices, 20);
}

// Some of these frames have the search cut the head into a few slices first, and into more then.
TEST(Recompute, HasOnePriceInASearchAndInItsReplay) {
  const TemporaryDirectory folder;
  const model::ModelConfig config = model::load_config(
      write_tiny_config(folder.path(), "\"hidden_size\": 64, \"intermediate_size\": 512"));
  const spec::DeviceSpec device = plan::with_peaks(device::describe_cpu(2));
  const lower::Compiled whole =
      lower::compile(model::build_graph(config, {.num_tokens = 4096}),
                     {.precision = lower::Precision::kBf16, .micro_batches = 1}, device);
  const plan::OpEfficiency efficiency = plan::default_efficiency();
  const plan::MemoryMenu menu(whole.graph, whole.plan, device, efficiency);
  int num_sliced = 0;
  for (std::int64_t i = 650; i < 800; ++i) {
    const plan::MemoryDecision found =
        plan::MemoryDecider(menu, {.budget_bytes = 1}).decide(whole.plan.frame_bytes * i / 1000);
    const plan::MemoryDecision again =
        plan::MemoryDecider(menu, {.replay = found.decisions}).decide(0);
    ASSERT_EQ(again.choices.size(), found.choices.size()) << i;
    for (std::size_t c = 0; c < found.choices.size(); ++c) {
      EXPECT_EQ(again.choices[c].label(), found.choices[c].label()) << i;
      EXPECT_EQ(again.choices[c].seconds, found.choices[c].seconds)
          << i << ": " << found.choices[c].label();
    }
    num_sliced += found.decisions.slices.empty() ? 0 : 1;
  }
  EXPECT_GT(num_sliced, 0);
}

TEST(Recompute, TrainsWithinABudgetWithEqualBits) {
  StepsOptions options = options_for("", lower::Precision::kBf16);
  options.compile.micro_batches = 0;
  const StepsResult want = run_steps(tied_moe_graph(3), options);
  options.compile.memory.budget_bytes = compiled(options.compile, 3).plan.peak_bytes() - 2000;
  const StepsResult got = run_steps(tied_moe_graph(3), options);
  EXPECT_EQ(got.states, want.states);
  EXPECT_LE(got.peak_bytes, options.compile.memory.budget_bytes);
}

template <class Error>
std::string refusal(const lower::CompileOptions& options) {
  try {
    compiled(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

TEST(Recompute, NamesWhatABudgetIsTooSmallFor) {
  lower::CompileOptions options = options_for("", lower::Precision::kBf16).compile;
  options.memory.budget_bytes = 1000;
  const std::string text = refusal<plan::BudgetError>(options);
  EXPECT_THAT(text, HasSubstr("at most 1000 B"));
  EXPECT_THAT(text, HasSubstr("at the least"));
  EXPECT_THAT(text, HasSubstr("optimizer state"));
}

TEST(Recompute, ObeysHintsOrRefusesThem) {
  lower::CompileOptions options = options_for("", lower::Precision::kBf16).compile;
  options.memory.recompute = {"experts"};
  const std::string label = "experts.grouped_linear_activation_with_products:0";
  std::set<std::string, std::less<>> want;
  for (const std::string& key : saved_keys({.precision = lower::Precision::kBf16}))
    if (key.find(".experts.") != std::string::npos) want.insert(key);
  EXPECT_TRUE(want.contains("layers.0." + label));
  EXPECT_EQ(compiled(options).memory.decisions.recompute, want);
  options.memory.recompute = {label};
  EXPECT_EQ(compiled(options).memory.choices.size(), 2u);  // one a layer
  options.memory.recompute = {"experts.grouped_linear_activation_with_product:0"};
  EXPECT_THAT(refusal<InvalidArgument>(options), HasSubstr("expected a segment or a value"));
  options.memory.recompute = {"layers.0.experts.grouped_linear_activation_with_product:0"};
  EXPECT_THAT(refusal<InvalidArgument>(options), HasSubstr("did you mean layers.0." + label));
  options.memory.recompute = {label};
  options.memory.keep = {"layers.1.experts"};
  EXPECT_THAT(refusal<InvalidArgument>(options), HasSubstr("hints that agree"));
  options.memory.recompute.clear();
  options.micro_batches = 0;
  options.memory.keep.clear();
  options.memory.budget_bytes = compiled(options).plan.peak_bytes() - 600;
  const lower::Compiled without = compiled(options);
  ASSERT_FALSE(without.memory.choices.empty());
  options.memory.keep = {without.memory.choices[0].name};
  const lower::Compiled kept = compiled(options);
  for (const plan::PricedChoice& choice : kept.memory.choices)
    EXPECT_NE(choice.name, options.memory.keep[0]);
}

TEST(Recompute, MenuOfOneLayerIsSolvedWithinAPercentOfTheOracle) {
  lower::CompileOptions options = options_for("", lower::Precision::kBf16).compile;
  options.micro_batches = 0;
  const lower::Compiled whole = compiled(options, 1);
  const spec::DeviceSpec device = plan::with_peaks(device::describe_cpu(1));
  const plan::OpEfficiency efficiency = plan::default_efficiency();
  const plan::MemoryMenu menu(whole.graph, whole.plan, device, efficiency);
  ASSERT_LE(menu.items().size(), 20u);
  std::vector<plan::ItemRule> rules(menu.items().size(), plan::ItemRule::kFree);
  const std::int64_t most = whole.plan.frame_live_bytes;
  const plan::MenuChoice leanest = plan::choose_by_ratio(
      rules, [&](const std::vector<bool>& chosen) { return menu.evaluate(chosen, 0); });
  const std::int64_t least = leanest.outcome.peak_bytes;
  ASSERT_LT(least, most);
  double gaps = 0;
  int solved = 0;
  for (int i = 0; i < 8; ++i) {
    const std::int64_t budget = least + (most - least) * i / 8;
    const plan::EvaluateMenu evaluate = [&](const std::vector<bool>& chosen) {
      return menu.evaluate(chosen, budget);
    };
    const plan::MenuChoice best = plan::choose_exactly(rules, evaluate);
    const plan::MenuChoice found = plan::choose_by_ratio(rules, evaluate);
    EXPECT_EQ(found.holds, best.holds) << i;
    if (!best.holds) continue;
    ++solved;
    gaps += found.outcome.seconds / best.outcome.seconds - 1;
  }
  ASSERT_EQ(solved, 8);
  EXPECT_LE(gaps / solved, 0.01);
}

}  // namespace
}  // namespace anabatic::testing
