// SPDX-License-Identifier: Apache-2.0
// The passes after recompute, each switched off: equal bits, steps that fit their budgets, and a
// menu that foretells what the passes that run will do.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "analysis/rebuild.h"
#include "base/philox.h"
#include "device/topology.h"
#include "plan/memory_menu.h"
#include "plan/training_fixture.h"
#include "spec/product.h"

namespace anabatic::testing {
namespace {

using spec::SavedForm;
using Names = std::set<std::string, std::less<>>;

const Names kFusions{"drop_kept_products", "quantize_in_product", "activation_with_gradient",
                     "read_quantized"};

// Sets of passes to switch off: none, each, all.
std::vector<Names> switched_off() {
  std::vector<Names> result{{}};
  for (const std::string& name : kFusions) result.push_back({name});
  result.push_back(kFusions);
  return result;
}

analysis::ProductFusions fusions_without(const Names& off) {
  return {.quantize_in_product = !off.contains("quantize_in_product"),
          .activation_with_gradient = !off.contains("activation_with_gradient"),
          .read_quantized = !off.contains("read_quantized")};
}

StepsOptions options_for(lower::Precision precision, const Names& off = {}) {
  StepsOptions options;
  options.compile.precision = precision;
  options.compile.memory.compression = {.allowed = SavedForm::kInt8, .min_bytes = 0};
  options.compile.disabled_passes = off;
  options.executor.poison = true;
  return options;
}

lower::Compiled compiled(const lower::CompileOptions& options, int num_layers) {
  return lower::compile(tied_moe_graph(num_layers), options, device::describe_cpu(1));
}

// Passes whose work is in the graph.
Names fusions_in(const ir::Graph& graph) {
  Names names;
  for (const ir::Node& node : graph.nodes) {
    const spec::ProductForm* form = ir::product_form(node);
    if (form == nullptr || !form->has_activation) continue;
    if (form->role == spec::ProductRole::kForward) {
      if (form->keeps == spec::KeptProducts::kNone) names.insert("drop_kept_products");
      if (form->keeps == spec::KeptProducts::kInt8) names.insert("quantize_in_product");
    } else {
      if (node.attributes.contains("with_activation")) names.insert("activation_with_gradient");
      for (const ir::ValueId input : node.inputs)
        if (graph.value(input).type.is_quantized()) names.insert("read_quantized");
    }
  }
  return names;
}

// Layer 0 recomputes the operands of its activation; the others save them as int8. Layer 1 keeps
// the activation.
plan::MemoryOptions hints_for_each_fusion() {
  const auto key = [](int layer, int output) {
    return fmt::format("layers.{}.experts.grouped_linear_activation_with_products:{}", layer,
                       output);
  };
  return {.recompute = {key(0, 0), key(0, 1), key(0, 2), key(2, 0)},
          .compression = {.allowed = SavedForm::kInt8, .min_bytes = 0},
          .compress = {key(1, 1), key(1, 2), key(2, 1), key(2, 2)}};
}

TEST(ProductFusions, LeaveEqualBitsWhereOneIsSwitchedOff) {
  for (const char* kernels : {"ref", ""})
    for (const auto precision : {lower::Precision::kFp32, lower::Precision::kBf16}) {
      StepsResult want;
      for (const Names& off : switched_off()) {
        SCOPED_TRACE(::testing::PrintToString(off));
        StepsOptions options = options_for(precision, off);
        options.compile.only_kernels = kernels;
        options.compile.memory = hints_for_each_fusion();
        Names on = kFusions;
        for (const std::string& name : off) on.erase(name);
        EXPECT_EQ(fusions_in(compiled(options.compile, 3).graph), on);
        const StepsResult got = run_steps(tied_moe_graph(3), options);
        if (off.empty()) want = got;
        EXPECT_EQ(got.losses, want.losses);
        EXPECT_EQ(got.states, want.states);
      }
      EXPECT_FALSE(want.states.empty());
    }
}

TEST(ProductFusions, KeepATightBudgetWhereOneIsSwitchedOff) {
  StepsOptions free = options_for(lower::Precision::kBf16);
  free.compile.memory = {};
  const StepsResult want = run_steps(tied_moe_graph(3), free);
  lower::CompileOptions leanest = free.compile;
  leanest.memory.recompute = {"experts"};
  const std::int64_t most = compiled(free.compile, 3).plan.peak_bytes(),
                     least = compiled(leanest, 3).plan.peak_bytes();
  ASSERT_LT(least, most);
  for (const Names& off : switched_off()) {
    SCOPED_TRACE(::testing::PrintToString(off));
    StepsOptions options = free;
    options.compile.disabled_passes = off;
    options.compile.memory.budget_bytes = least + (most - least) / 8;
    const lower::Compiled step = compiled(options.compile, 3);
    EXPECT_FALSE(step.memory.choices.empty());
    const StepsResult got = run_steps(tied_moe_graph(3), options);
    EXPECT_LE(got.peak_bytes, options.compile.memory.budget_bytes);
    EXPECT_EQ(got.states, want.states);
  }
}

// Int8 values change gradients, so that the bits are those of the same choices with all passes on.
TEST(ProductFusions, KeepABudgetWithInt8WhereOneIsSwitchedOff) {
  const std::int64_t most = compiled({.precision = lower::Precision::kFp32}, 3).plan.peak_bytes();
  Names seen;
  for (const Names& off : switched_off())
    for (int i = 1; i <= 6; ++i) {
      SCOPED_TRACE(::testing::PrintToString(off));
      StepsOptions options = options_for(lower::Precision::kFp32, off);
      options.compile.memory.budget_bytes = most - 900 * i;
      const lower::Compiled step = compiled(options.compile, 3);
      const StepsResult got = run_steps(tied_moe_graph(3), options);
      EXPECT_LE(got.peak_bytes, options.compile.memory.budget_bytes);
      options.compile.memory.budget_bytes = 0;
      options.compile.memory.replay = step.memory.decisions;
      options.compile.disabled_passes.clear();
      EXPECT_EQ(run_steps(tied_moe_graph(3), options).states, got.states) << i;
      seen.merge(fusions_in(step.graph));
    }
  EXPECT_EQ(seen, kFusions);
}

// The menu against the plan.
TEST(ProductFusions, AreForetoldAsFarAsTheyAreSwitchedOn) {
  const spec::DeviceSpec device = plan::with_peaks(device::describe_cpu(1));
  const plan::OpEfficiency efficiency = plan::default_efficiency();
  for (const Names& off : switched_off()) {
    SCOPED_TRACE(::testing::PrintToString(off));
    lower::CompileOptions options = options_for(lower::Precision::kFp32, off).compile;
    const lower::Compiled whole = compiled(options, 4);
    const double whole_seconds =
        plan::price_step(whole.graph, whole.plan, device, efficiency, 1).seconds;
    const plan::MemoryMenu menu(whole.graph, whole.plan, device, efficiency,
                                options.memory.compression, {}, fusions_without(off));
    for (std::uint64_t seed = 1; seed < 20; ++seed) {
      std::vector<bool> chosen(menu.items().size());
      for (std::size_t i = 0; i < chosen.size(); ++i)
        chosen[i] = menu.items()[i].name.find("_with_products") != std::string::npos &&
                    random_below(seed, 0, i, 2) == 0;
      options.memory.replay = menu.decisions(chosen);
      const lower::Compiled step = compiled(options, 4);
      const plan::MenuOutcome foretold = menu.evaluate(chosen, 0);
      const std::int64_t planned = step.plan.frame_live_bytes;
      EXPECT_LE(planned, foretold.peak_bytes + foretold.peak_bytes / 64) << seed;
      EXPECT_LE(foretold.peak_bytes, planned + planned / 64) << seed;
      const double added =
          plan::price_step(step.graph, step.plan, device, efficiency, 1).seconds - whole_seconds;
      EXPECT_LE(std::abs(foretold.seconds - added), added / 32) << seed;
    }
  }
}

}  // namespace
}  // namespace anabatic::testing
