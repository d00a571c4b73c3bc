// SPDX-License-Identifier: Apache-2.0
// Steps that compress saved values: what changes, by how much, and what must not change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "anabatic/error.h"
#include "analysis/rebuild.h"
#include "analysis/saved_form.h"
#include "base/philox.h"
#include "device/topology.h"
#include "plan/hints.h"
#include "plan/memory_menu.h"
#include "plan/training_fixture.h"

namespace anabatic::testing {
namespace {

using spec::SavedForm;
using ::testing::HasSubstr;

StepsOptions options_for(lower::Precision precision, SavedForm allowed) {
  StepsOptions options;
  options.compile.precision = precision;
  options.compile.memory.compression = {.allowed = allowed, .min_bytes = 0};
  options.executor.poison = true;
  return options;
}

lower::Compiled compiled(const lower::CompileOptions& options, int num_layers = 2) {
  return lower::compile(tied_moe_graph(num_layers), options, device::describe_cpu(1));
}

// Keys of what may be compressed, and of everything else that is saved.
struct Keys {
  std::vector<std::string> compressible, others;
};
Keys saved_keys(lower::CompileOptions options) {
  options.memory = {};
  const lower::Compiled whole = compiled(options);
  Keys keys;
  const analysis::Rebuilder rebuilder(whole.graph);
  for (const analysis::SavedValue& saved : rebuilder.saved())
    (analysis::may_wait_as(whole.graph, saved.value, SavedForm::kInt8) ? keys.compressible
                                                                       : keys.others)
        .push_back(saved.key);
  return keys;
}

std::vector<std::string> some_of(const std::vector<std::string>& keys, std::uint64_t seed,
                                 std::uint64_t stream) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (random_below(seed, stream, i, 2) == 0) result.push_back(keys[i]);
  return result;
}

TEST(Compress, IsNotOfferedForDecisionsAndStatistics) {
  const Keys keys = saved_keys({.precision = lower::Precision::kBf16});
  EXPECT_GT(keys.compressible.size(), 6u);
  std::set<std::string> others;
  for (const std::string& key : keys.others) others.insert(std::string(plan::without_layer(key)));
  const std::string text = ::testing::PrintToString(others);
  for (const char* op : {"router:0", "router:1", "router:2", "route_sort:0"})
    EXPECT_THAT(text, HasSubstr(op));
  for (const std::string& key : keys.compressible) EXPECT_EQ(key.find("rout"), key.npos) << key;
}

TEST(Compress, ReachesOnlyTheGradientsThatReadTheValue) {
  for (const auto& [precision, form] : {std::pair{lower::Precision::kFp32, SavedForm::kInt8},
                                        std::pair{lower::Precision::kFp32, SavedForm::kBFloat16},
                                        std::pair{lower::Precision::kBf16, SavedForm::kInt8}}) {
    StepsOptions options = options_for(precision, form);
    options.end_step = 1;
    const StepsResult want = run_steps(tied_moe_graph(2), options);
    // The activation of the last layer is read by one weight-gradient alone.
    std::string activation;
    for (const std::string& key : saved_keys(options.compile).compressible)
      if (key.find("layers.1.experts") != key.npos && key.ends_with("_with_products:0"))
        activation = key;
    ASSERT_FALSE(activation.empty());
    options.compile.memory.compress = {activation};
    const StepsResult got = run_steps(tied_moe_graph(2), options);
    EXPECT_EQ(got.losses, want.losses);
    for (const auto& [name, bytes] : want.gradients)  // sums of its squares among them
      EXPECT_EQ(got.gradients.at(name) != bytes,
                name.ends_with("gradients.layers.1.experts.down.weight"))
          << name;
  }
}

TEST(Compress, GivesTheBitsOfItsChoicesUnderEveryPlan) {
  for (const auto& [precision, form] : {std::pair{lower::Precision::kFp32, SavedForm::kInt8},
                                        std::pair{lower::Precision::kFp32, SavedForm::kBFloat16},
                                        std::pair{lower::Precision::kBf16, SavedForm::kInt8}}) {
    StepsOptions options = options_for(precision, form);
    const Keys keys = saved_keys(options.compile);
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      options.end_micro_batch = 1 + static_cast<int>(seed % 3);
      options.compile.micro_batches = options.end_micro_batch == 1 ? 1 : 0;
      options.compile.memory.compress =
          seed == 0 ? keys.compressible : some_of(keys.compressible, seed, 0);
      options.compile.memory.recompute.clear();
      const std::set<std::string> taken(options.compile.memory.compress.begin(),
                                        options.compile.memory.compress.end());
      // Values that one node computes are recomputed together.
      for (const std::string& key : some_of(keys.others, seed, 1))
        options.compile.memory.recompute.push_back(key);
      options.compile.trivial_planners = false;
      options.num_threads = 1;
      const StepsResult want = run_steps(tied_moe_graph(2), options);
      for (const float loss : want.losses) EXPECT_TRUE(std::isfinite(loss)) << seed;
      options.num_threads = 3;
      EXPECT_EQ(run_steps(tied_moe_graph(2), options).states, want.states) << seed;
      options.num_threads = 2;
      options.compile.trivial_planners = true;
      EXPECT_EQ(run_steps(tied_moe_graph(2), options).states, want.states) << seed;
    }
  }
}

bool holds(lower::CompileOptions options, std::int64_t budget) {
  options.memory.budget_bytes = budget;
  const auto got = lower::try_compile(tied_moe_graph(4), options, device::describe_cpu(1));
  EXPECT_LE(got ? got->plan.peak_bytes() : 0, budget);
  return bool(got);
}

TEST(Compress, KeepsTheBudgetsThatAreKeptWithoutIt) {
  lower::CompileOptions without;
  without.precision = lower::Precision::kFp32;
  lower::CompileOptions with = without;
  with.memory.compression = {.allowed = SavedForm::kInt8, .min_bytes = 0};
  const std::int64_t most = compiled(without, 4).plan.peak_bytes();
  for (int i = 1; i <= 6; ++i) {
    const std::int64_t budget = most - 700 * i;
    EXPECT_LE(holds(without, budget), holds(with, budget)) << i;
  }
}

TEST(Compress, TakesOneWayAValue) {
  lower::CompileOptions options = options_for(lower::Precision::kFp32, SavedForm::kInt8).compile;
  const lower::Compiled whole = compiled(options);
  const spec::DeviceSpec device = plan::with_peaks(device::describe_cpu(1));
  const plan::OpEfficiency efficiency = plan::default_efficiency();
  const plan::MemoryMenu menu(whole.graph, whole.plan, device, efficiency,
                              options.memory.compression);
  const spec::Decisions all = menu.decisions(std::vector<bool>(menu.items().size(), true));
  EXPECT_TRUE(all.saved_as.empty());
  std::vector<bool> chosen;
  for (const plan::MenuItem& item : menu.items()) chosen.push_back(item.way != plan::Way::kAgain);
  const spec::Decisions compressed = menu.decisions(chosen);
  EXPECT_TRUE(compressed.recompute.empty());
  EXPECT_FALSE(compressed.saved_as.empty());
  for (const auto& [key, form] : compressed.saved_as) EXPECT_EQ(form, SavedForm::kInt8) << key;
  const double all_seconds = menu.evaluate(std::vector<bool>(menu.items().size(), true), 0).seconds;
  std::vector<bool> recomputed;
  for (const bool is_compression : chosen) recomputed.push_back(!is_compression);
  EXPECT_EQ(all_seconds, menu.evaluate(recomputed, 0).seconds);
}

TEST(Compress, RefusesHintsThatDisagree) {
  lower::CompileOptions options = options_for(lower::Precision::kBf16, SavedForm::kInt8).compile;
  options.memory.compress = {"experts"};
  options.memory.keep = {"layers.1.experts"};
  try {
    compiled(options);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("hints that agree"));
  }
}

// With so many layers that neighbours are one item.
TEST(Compress, ReplaysWhatWaitsTogetherWholeOrNotAtAll) {
  lower::CompileOptions options = options_for(lower::Precision::kBf16, SavedForm::kInt8).compile;
  const lower::Compiled whole = compiled(options, 40);
  const spec::DeviceSpec device = plan::with_peaks(device::describe_cpu(1));
  const plan::OpEfficiency efficiency = plan::default_efficiency();
  const plan::MemoryMenu menu(whole.graph, whole.plan, device, efficiency,
                              options.memory.compression);
  const auto group = std::find_if(menu.items().begin(), menu.items().end(), [](const auto& item) {
    return item.way == plan::Way::kInt8 && item.keys.size() > 1;
  });
  ASSERT_NE(group, menu.items().end());
  spec::Decisions decisions;
  for (const std::string& key : group->keys) decisions.saved_as[key] = SavedForm::kInt8;
  const auto replayed = [&] {
    options.memory.replay = decisions;
    return plan::MemoryDecider(menu, options.memory).decide(whole.plan.frame_bytes).decisions;
  };
  EXPECT_EQ(replayed().saved_as, decisions.saved_as);
  // A recomputed value need not be saved.
  const std::string last = group->keys.back();
  decisions.saved_as.erase(last);
  for (const plan::MenuItem& item : menu.items())
    if (item.way == plan::Way::kAgain &&
        std::find(item.keys.begin(), item.keys.end(), last) != item.keys.end())
      decisions.recompute.insert(item.keys.begin(), item.keys.end());
  EXPECT_EQ(replayed().saved_as, decisions.saved_as);
  decisions.recompute.clear();
  try {
    replayed();
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("missing are\n  " + last + " as int8"));
  }
}

// The menu's timeline against the plan that comes of it.
TEST(Compress, TimelineForetellsThePlan) {
  lower::CompileOptions options = options_for(lower::Precision::kFp32, SavedForm::kInt8).compile;
  const lower::Compiled whole = compiled(options, 4);
  const spec::DeviceSpec device = plan::with_peaks(device::describe_cpu(1));
  const plan::OpEfficiency efficiency = plan::default_efficiency();
  const plan::MemoryMenu menu(whole.graph, whole.plan, device, efficiency,
                              options.memory.compression);
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    std::vector<bool> chosen(menu.items().size());
    options.memory.compress.clear();
    for (std::size_t i = 0; i < chosen.size(); ++i)
      if ((chosen[i] = menu.items()[i].way == plan::Way::kInt8 && random_below(seed, 0, i, 3) == 0))
        options.memory.compress.push_back(menu.items()[i].name);
    const std::int64_t foretold = menu.evaluate(chosen, 0).peak_bytes;
    const std::int64_t planned = compiled(options, 4).plan.frame_live_bytes;
    EXPECT_LE(planned, foretold + foretold / 8) << seed;
    EXPECT_LE(foretold, planned + planned / 8) << seed;
  }
}

// Values are recomputed together with their neighbours, also those that are saved as int8.
TEST(Compress, TimelineCountsAValueOnce) {
  const lower::CompileOptions options =
      options_for(lower::Precision::kFp32, SavedForm::kInt8).compile;
  const lower::Compiled whole = compiled(options, 4);
  const spec::DeviceSpec device = plan::with_peaks(device::describe_cpu(1));
  const plan::OpEfficiency efficiency = plan::default_efficiency();
  const plan::MemoryMenu menu(whole.graph, whole.plan, device, efficiency,
                              options.memory.compression);
  std::vector<bool> chosen(menu.items().size()), with_values;
  for (std::size_t i = 0; i < chosen.size(); ++i)
    chosen[i] = menu.items()[i].way == plan::Way::kAgain &&
                menu.items()[i].name.ends_with("add_rms_norm:0");
  with_values = chosen;
  std::int64_t saved = 0;
  for (std::size_t i = 0; i < chosen.size(); ++i)
    if (menu.items()[i].way == plan::Way::kInt8 &&
        menu.items()[i].name.ends_with("add_rms_norm:1")) {
      with_values[i] = true;
      saved += menu.items()[i].bytes;
    }
  EXPECT_GT(saved, 0);
  EXPECT_GE(menu.evaluate(with_values, 0).peak_bytes, menu.evaluate(chosen, 0).peak_bytes - saved);
}

}  // namespace
}  // namespace anabatic::testing
