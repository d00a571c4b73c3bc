// SPDX-License-Identifier: Apache-2.0
// Runs with int8 products: losses next to those of bf16, equal bits however they are planned and
// resumed, checkpoints of bf16, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "anabatic/error.h"
#include "analysis/rebuild.h"
#include "analysis/saved_form.h"
#include "base/log.h"
#include "base/text.h"
#include "support/error_message.h"
#include "support/plan_changes.h"
#include "support/planned_run.h"
#include "support/sanitized.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "support/tolerance.h"
#include "support/trained_run.h"
#include "train/evaluate.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

using anabatic::testing::checkpoint_bytes;
using anabatic::testing::losses_of;
using anabatic::testing::message_of;
using anabatic::testing::plan_changes;
using anabatic::testing::PlanChange;
using anabatic::testing::recomputing;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::trained_bytes;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kExperts = R"("hidden_size": 64, "intermediate_size": 96)";
constexpr const char* kDense = R"("model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64, "intermediate_size": 160, "num_local_experts": 0,
    "output_router_logits": false)";

RunConfig int8_run(const std::filesystem::path& folder, const std::string& extra = kExperts) {
  RunConfig run = anabatic::testing::tiny_run(folder, extra);
  run.train.precision = "int8";
  run.train.steps = 4;
  run.data.sequence_length = 32;
  return run;
}

// By what marks a call as an int8 product.
struct Products {
  int forward = 0, input_gradients = 0, weight_gradients = 0, heads = 0;
};
Products int8_products(const RunConfig& run) {
  const anabatic::testing::PlannedRun planned = anabatic::testing::plan_of(run);
  const ir::Graph& graph = planned.budgeted.plan.training.graph;
  Products count;
  for (const ir::Node& node : graph.nodes) {
    const spec::ProductForm* form = ir::product_form(node);
    if (node.op->name.starts_with("head_") && node.attributes.contains("fallback")) ++count.heads;
    if (form == nullptr) continue;
    const bool has_tiles = std::ranges::any_of(
        node.inputs, [&](ir::ValueId input) { return is_int8_panels(graph.value(input).type); });
    using enum spec::ProductRole;
    if (form->role == kForward && has_tiles) ++count.forward;
    if (form->role == kInputGradient && has_tiles) ++count.input_gradients;
    if (form->role == kWeightGradient && node.attributes.contains("fallback"))
      ++count.weight_gradients;
  }
  return count;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_LE(std::abs(got[i] - want[i]),
              anabatic::testing::loss_tolerance(want[i], DType::kBFloat16))
        << "step " << i;
}

// In int8 and in bf16.
std::pair<std::vector<double>, std::vector<double>> both_losses(RunConfig run) {
  Trainer(run).train();
  const std::vector<double> got = losses_of(run);
  run.train.precision = "bf16";
  run.train.output += "_bf16";
  Trainer(run).train();
  return {got, losses_of(run)};
}

TEST(Int8Training, HasLossesNextToThoseOfBf16) {
  for (const char* extra : {kExperts, kDense}) {
    SCOPED_TRACE(extra);
    const TemporaryDirectory folder;
    RunConfig run = int8_run(folder.path(), extra);
    run.train.steps = anabatic::testing::kIsSanitized ? 2 : 20;
    const Products count = int8_products(run);
    EXPECT_GE(count.forward, 2 * 3);  // q k v together, o, and the MLP
    EXPECT_GE(count.input_gradients, 2 * 3);
    EXPECT_GE(count.weight_gradients, 2 * 3);
    const auto [got, want] = both_losses(run);
    EXPECT_NE(got, want);
    if (!anabatic::testing::kIsSanitized) {
      EXPECT_LT(want.back(), want.front());
    }
    expect_near(got, want);
  }
}

// Latent attention with a shared expert, and biases of every product.
TEST(Int8Training, TakesTheProductsOfOtherFamilies) {
  for (const char* extra :
       {R"("model_type": "deepseek_v3", "hidden_size": 64, "intermediate_size": 96,
           "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
           "v_head_dim": 16, "num_key_value_heads": 4, "n_routed_experts": 4,
           "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
           "moe_intermediate_size": 48, "first_k_dense_replace": 1)",
        R"("model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 96, "head_dim": 16,
           "num_experts": 4, "sliding_window": 6, "rope_scaling": null)"}) {
    SCOPED_TRACE(extra);
    const TemporaryDirectory folder;
    const RunConfig run = int8_run(folder.path(), extra);
    EXPECT_GE(int8_products(run).forward, 2 * 3);
    const auto [got, want] = both_losses(run);
    expect_near(got, want);
  }
}

TEST(Int8Training, HasEqualBitsHoweverItIsPlanned) {
  const TemporaryDirectory folder;
  const RunConfig base = int8_run(folder.path());
  const std::string want = trained_bytes(base);
  int number = 0;
  for (const PlanChange& change : plan_changes()) {
    RunConfig run = base;
    run.train.output = folder.path() / std::to_string(number++);
    change.apply(run);
    EXPECT_TRUE(trained_bytes(run) == want) << change.name;
  }
}

// A third of the frame has to go, and is recomputed.
TEST(Int8Training, FitsASmallerBudgetWithEqualBits) {
  if (!anabatic::testing::has_optional_passes())
    GTEST_SKIP() << "the peak is at no value that can be computed again";
  const TemporaryDirectory folder;
  RunConfig run = int8_run(folder.path());
  run.train.micro_batch_size = 4;
  run.train.steps = 2;
  run.precision.keep = {{"head", "bf16"}};  // in int8 its chunk of 128 rows leaves no smaller plan
  const std::string want = trained_bytes(run);
  EXPECT_TRUE(trained_bytes(recomputing(run, folder.path())) == want);
}

std::int64_t state_bytes(const RunConfig& run) {
  const anabatic::testing::PlannedRun planned = anabatic::testing::plan_of(run);
  const ir::Graph& graph = planned.budgeted.plan.training.graph;
  std::int64_t bytes = 0;
  for (const ir::State& state : graph.states) bytes += graph.value(state.before).type.num_bytes();
  return bytes;
}

TEST(Int8Training, HasNoMoreStatesThanBf16WhereNoPackingIsKept) {
  if (!anabatic::testing::has_optional_passes())
    GTEST_SKIP() << "bf16 keeps copies of its own then";
  for (const char* extra : {kExperts, kDense}) {
    const TemporaryDirectory folder;
    RunConfig run = int8_run(folder.path(), extra);
    const std::int64_t kept = state_bytes(run);
    run.compiler.keep_packings = false;
    const std::int64_t got = state_bytes(run);
    EXPECT_LT(got, kept);
    run.train.precision = "bf16";
    EXPECT_LE(got, state_bytes(run));  // f64 sums differ
  }
}

// The smallest budget that holds no packing, and one that holds one.
TEST(Int8Training, KeepsNoPackingWhereABudgetAsksForIt) {
  if (!anabatic::testing::has_optional_passes())
    GTEST_SKIP() << "packings of other weights weigh more";
  const TemporaryDirectory folder;
  RunConfig run =  // states share blocks of 1 MiB, so some are larger
      int8_run(folder.path(), R"("hidden_size": 128, "intermediate_size": 768)");
  run.train.steps = 2;
  run.compiler.trivial_planners = false;
  const std::string want = trained_bytes(run);
  const auto peak_of = [&](bool keeps) {
    RunConfig other = run;
    other.compiler.pack_transposed = false;
    other.compiler.keep_packings = keeps;
    return anabatic::testing::plan_of(other).file.peak_bytes;
  };
  const std::int64_t one = peak_of(true), none = peak_of(false);
  ASSERT_LT(none, one);
  run.memory.budget = one;
  EXPECT_TRUE(anabatic::testing::plan_of(run).file.decisions.keep_packings);
  run.memory.budget = none;
  const PlanFile file = anabatic::testing::plan_of(run).file;
  EXPECT_FALSE(file.decisions.keep_packings);
  EXPECT_LE(file.peak_bytes, none);
  run.memory.budget = 0;
  run.memory.plan = folder.path() / "plan.json";
  write_file_atomically(run.memory.plan, to_json(file));
  run.train.output = folder.path() / "none";
  EXPECT_TRUE(trained_bytes(run) == want);
}

TEST(Int8Training, ResumesWithEqualBits) {
  for (const char* moments : {"fp32", "bf16", "int8"}) {
    const TemporaryDirectory folder;
    RunConfig run = int8_run(folder.path());
    run.train.save_every = 2;
    run.train.keep_last = 0;
    run.optimizer.state_precision = moments;
    const std::string want = trained_bytes(run);
    anabatic::testing::go_back_to(run.train.output, 2);
    EXPECT_TRUE(trained_bytes(run) == want) << moments;
  }
}

// Files hold the same states, so a run may go on in the other precision.
TEST(Int8Training, GoesOnFromACheckpointOfBf16AndBack) {
  for (const char* moments : {"fp32", "int8"}) {
    const TemporaryDirectory folder;
    RunConfig run = int8_run(folder.path());
    run.optimizer.state_precision = moments;
    run.optimizer.schedule = "constant";
    run.train.steps = 8;
    run.train.precision = "bf16";
    run.train.output = folder.path() / "bf16";
    Trainer(run).train();
    const std::vector<double> want = losses_of(run);
    run.train.output = folder.path() / "both";
    for (const auto& [precision, steps] :
         {std::pair{"bf16", 4}, std::pair{"int8", 6}, std::pair{"bf16", 8}}) {
      run.train.precision = precision;
      run.train.steps = steps;
      Trainer(run).train();
    }
    SCOPED_TRACE(moments);
    expect_near(losses_of(run), want);
    run.train.precision = "fp32";
    run.train.steps = 9;
    EXPECT_THAT(message_of<InvalidArgument>([&] { Trainer(run).train(); }),
                HasSubstr("train.precision: the checkpoint has bf16, this run fp32"));
  }
}

// Each shape of a step.
TEST(Int8Training, TakesMicroBatchesUpdatesInTheBackwardAndRanks) {
  const TemporaryDirectory folder;
  RunConfig run = int8_run(folder.path());
  run.train.steps = 2;
  run.train.gradient_accumulation_steps = 2;
  run.train.gradient_leaves = 2;
  run.optimizer.update = "in_backward";
  run.data.validation = {anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
  EXPECT_FALSE(trained_bytes(run).empty());
  run.optimizer.update = "after_backward";
  run.train.output = folder.path() / "one";
  const auto state = anabatic::testing::training_state(Trainer(run).train().checkpoint);
  run.train.gradient_accumulation_steps = 1;
  run.parallel.local_ranks = 2;
  run.train.output = folder.path() / "two";
  EXPECT_EQ(anabatic::testing::training_state(Trainer(run).train().checkpoint), state);
  // Ranks that share experts multiply the rows of both: sums go in another order.
  const std::vector<double> want = losses_of(run);
  run.parallel.expert = 2;
  run.train.output = folder.path() / "experts";
  Trainer(run).train();
  expect_near(losses_of(run), want);
}

TEST(Int8Training, KeepsUnitsAtTheirPrecision) {
  const TemporaryDirectory folder;
  RunConfig run = int8_run(folder.path());
  const Products all = int8_products(run);
  run.precision.keep = {{"attention", "bf16"}, {"layers.0.experts.down", "fp32"}};
  const Products some = int8_products(run);
  EXPECT_LT(some.forward, all.forward);
  EXPECT_LT(some.weight_gradients, all.weight_gradients);
  EXPECT_GT(some.forward, 0);
  EXPECT_FALSE(trained_bytes(run).empty());
  EXPECT_EQ(some.heads, all.heads);
  EXPECT_EQ(all.heads, testing::has_pass("fuse_head_loss") ? 1 : 0);
  run.precision.keep = {{"head", "bf16"}};
  const Products without_head = int8_products(run);
  EXPECT_EQ(without_head.forward, all.forward);
  EXPECT_EQ(without_head.heads, 0);
  run.precision.keep = {{"attentions", "bf16"}};
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { Trainer(run).train(); }),
      AllOf(HasSubstr("precision.keep: expected a unit with products, got 'attentions'; did "
                      "you mean 'attention'?"),
            HasSubstr("layers.N.experts.down")));
}

TEST(Int8Training, KeepsCriticalUnitsFromInt8) {
  const TemporaryDirectory folder;
  RunConfig run = int8_run(folder.path());
  const Products all = int8_products(run);
  run.precision.critical = {"attention"};
  run.precision.keep = {{"layers.0.attention", "bf16"}};  // says the same
  const Products some = int8_products(run);
  run.precision.critical = {};
  run.precision.keep = {{"attention", "bf16"}};
  const Products kept = int8_products(run);
  EXPECT_LT(some.forward, all.forward);
  EXPECT_EQ(some.forward, kept.forward);
  EXPECT_EQ(some.input_gradients, kept.input_gradients);
  EXPECT_EQ(some.weight_gradients, kept.weight_gradients);
  run.precision.critical = {"layers.1.attention", "head"};
  run.precision.keep = {{"attention", "int8"}};
  EXPECT_THAT(message_of<InvalidArgument>([&] { Trainer(run).train(); }),
              HasSubstr("precision.keep: expected bf16 or fp32 for 'attention', got int8: "
                        "precision.critical has 'layers.1.attention', and both hold "
                        "layers.1.attention.q"));
  run.precision.critical = {"experts.dwn"};
  EXPECT_THAT(message_of<InvalidArgument>([&] { Trainer(run).train(); }),
              HasSubstr("precision.critical: expected a unit with products, got 'experts.dwn'"));
}

TEST(Int8Training, SaysAtItsStartWhatEachUnitMultiplies) {
  const TemporaryDirectory folder;
  RunConfig run = int8_run(folder.path());
  run.train.steps = 0;
  run.precision.keep = {{"attention.v", "bf16"}, {"layers.1.experts.down", "fp32"}};
  run.precision.critical = {"attention.o"};
  struct Listener : RunListener {
    std::string text;
    void on_message(Severity, const std::string& line) override { text += line + '\n'; }
  };
  for (const bool keeps_packings : {true, false}) {
    Listener listener;
    run.compiler.keep_packings = keeps_packings;
    run.train.output = folder.path() / (keeps_packings ? "kept" : "none");
    Trainer(run, listener).train();
    EXPECT_THAT(listener.text,
                AllOf(HasSubstr("products in int8: layers.N.attention.q, layers.N.attention.k, "),
                      HasSubstr("layers.0.experts.down"),
                      HasSubstr("layers.N.attention.v (precision.keep has attention.v)"),
                      HasSubstr("layers.N.attention.o (precision.critical has attention.o)"),
                      HasSubstr("layers.N.router (a depth of 4 is below 32)"),
                      HasSubstr("products in fp32: layers.1.experts.down (precision.keep has "
                                "layers.1.experts.down)")));
  }
}

TEST(Int8Training, SaysWhichProductsAreInInt8) {
  const TemporaryDirectory folder;
  RunConfig run = int8_run(folder.path());
  run.compiler.explain_dispatch = true;
  run.precision.keep = {{"attention.v", "bf16"}};
  std::string text;
  set_log_sink([&](Severity, const std::string& line) { text += line + '\n'; });
  int8_products(run);
  set_log_sink({});
  EXPECT_THAT(text, HasSubstr("layers.1.experts.down: int8 products, fallback 64; the parameter "
                              "stays f32 in rows"));
  EXPECT_THAT(text,
              HasSubstr("layers.0.attention.v: bf16 products: precision.keep has attention.v"));
  EXPECT_THAT(text, HasSubstr("layers.0.router: bf16 products: a depth of 4 is below 32"));
  EXPECT_THAT(text, HasSubstr(testing::has_pass("fuse_head_loss")
                                  ? "head: int8 products, fallback 64\n"
                                  : "head: bf16 products: its result is f32"));
}

TEST(Int8Training, PacksInItsUpdateOrSaysWhyNot) {
  if (!testing::has_pass("fuse_optimizer")) GTEST_SKIP() << "no update packs";
  const TemporaryDirectory folder;
  const auto explained = [&](const std::function<void(RunConfig&)>& change) {
    RunConfig run = int8_run(folder.path());
    run.compiler.explain_dispatch = true;
    change(run);
    std::string text;
    set_log_sink([&](Severity, const std::string& line) { text += line + '\n'; });
    anabatic::testing::plan_of(run);
    set_log_sink({});
    return text;
  };
  constexpr const char* kAfter = "layers.0.experts.down.weight: packed after its update: ";
  const std::string fused = explained([](RunConfig&) {});
  EXPECT_THAT(fused, HasSubstr("int8 products"));
  EXPECT_THAT(fused, Not(HasSubstr("packed after its update")));
  EXPECT_THAT(explained([](RunConfig& run) { run.compiler.pack_transposed = false; }),
              HasSubstr(std::string(kAfter) + "there is one packing"));
  EXPECT_THAT(explained([](RunConfig& run) {
                run.memory.optimizer_state = "disk";
                run.memory.swap_slice = 4096;
              }),
              HasSubstr(std::string(kAfter) + "the update runs by slices"));
  EXPECT_THAT(explained([](RunConfig& run) {
                run.quantization.enable = true;
                run.quantization.units = {"experts"};
              }),
              HasSubstr(std::string(kAfter) + "it is not of the parameter itself"));
}

// A matrix of the usual tiny model is too short for int8.
TEST(Int8Training, LeavesShortDepthsInBf16) {
  const TemporaryDirectory folder;
  const Products count = int8_products(int8_run(folder.path(), ""));
  EXPECT_EQ(count.forward + count.input_gradients + count.weight_gradients, 0);
}

TEST(Int8Training, IsRefusedByTheNamesOfKeys) {
  const auto problems = [](const Overrides& overrides) {
    return message_of<InvalidArgument>([&] { load_run_config("", overrides); });
  };
  EXPECT_THAT(problems({{"train.precision", {"int8"}}, {"train.objective", {"dpo"}}}),
              HasSubstr("train.precision: expected bf16 with train.objective: dpo, got int8"));
  EXPECT_EQ(load_run_config({}, {{"precision.int8_fallback", {"off"}}}).precision.int8.fallback,
            load_run_config({}, {{"precision.int8.fallback", {"off"}}}).precision.int8.fallback)
      << "as run_config.yaml of older checkpoints spells it";
  EXPECT_THAT(problems({{"precision.int8.fallback", {"-1"}}}),
              HasSubstr("precision.int8.fallback: expected an integer 0 to 127, got -1 (or off)"));
  EXPECT_THAT(problems({{"precision.keep", {"attention"}}}),
              HasSubstr("precision.keep: expected UNIT=PRECISION, got 'attention'"));
  EXPECT_THAT(problems({{"precision.keep", {"attention=int4"}}}),
              HasSubstr("precision.keep: expected int8, bf16 or fp32 for 'attention', got 'int4'"));
  EXPECT_THAT(problems({{"train.precision", {"fp32"}}, {"precision.keep", {"attention=bf16"}}}),
              HasSubstr("precision.keep: expected train.precision: bf16, int8, fp16 or mixed"));
  EXPECT_THAT(problems({{"train.precision", {"bf16"}}, {"precision.keep", {"attention=int8"}}}),
              HasSubstr("precision.keep: expected bf16 or fp32 for 'attention' with "
                        "train.precision: bf16, got int8"));
  for (const char* precision : {"fp32", "fp16", "mixed"})
    EXPECT_THAT(
        problems({{"train.precision", {precision}}, {"precision.critical", {"head"}}}),
        HasSubstr(
            std::string(
                "precision.critical: expected train.precision: int8, adaptive, or bf16, where "
                "it changes nothing, got ") +
            precision));
  EXPECT_THAT(problems({{"precision.int8", {"64"}}}), HasSubstr("precision.int8"));
}

// Other verbs compute in what the files of the model hold.
TEST(Int8Training, IsEvaluatedInBf16) {
  const TemporaryDirectory folder;
  RunConfig run = int8_run(folder.path());
  run.data.validation = {anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
  run.train.steps = 0;
  const double in_int8_run = evaluate(run).loss;
  run.train.precision = "bf16";
  EXPECT_EQ(evaluate(run).loss, in_int8_run);
}

// What waits for the backward has the blocks of the forward's int8 products, and costs gradients
// what it costs them in bf16.
TEST(Int8Training, KeepsActivationsInInt8WhereAPlanSaysSo) {
  const TemporaryDirectory folder;
  RunConfig run = int8_run(folder.path());
  run.train.micro_batch_size = 16;
  run.compiler.trivial_planners = false;
  const std::string whole = trained_bytes(run);
  const std::vector<double> want = losses_of(run);

  run.memory.compress = "int8";
  const auto planned = anabatic::testing::plan_of(run);
  PlanFile file = planned.file;
  const ir::Graph& graph = planned.budgeted.plan.training.graph;
  const analysis::Rebuilder rebuilder(graph);
  for (const analysis::SavedValue& saved : rebuilder.saved())
    if (analysis::may_wait_as(graph, saved.value, spec::SavedForm::kInt8) &&
        graph.value(saved.value).type.num_bytes() >= plan::CompressionOptions{}.min_bytes)
      file.decisions.saved_as[saved.key] = spec::SavedForm::kInt8;
  EXPECT_GT(file.decisions.saved_as.size(), 8u);
  run.memory.plan = folder.path() / "plan.json";
  write_file_atomically(run.memory.plan, to_json(file));
  run.train.output = folder.path() / "compressed";
  const std::string compressed = trained_bytes(run);
  const std::vector<double> got = losses_of(run);
  EXPECT_EQ(got[0], want[0]);
  EXPECT_FALSE(compressed == whole);
  expect_near(got, want);
  run.compiler.poison = true;
  run.train.output = folder.path() / "poison";
  EXPECT_TRUE(trained_bytes(run) == compressed);
}

RunConfig validated_run(const std::filesystem::path& folder, const std::string& extra = kExperts) {
  RunConfig run = int8_run(folder, extra);
  run.data.validation = {anabatic::testing::write_tiny_tokens(folder, "validation", 12, 8)};
  run.train.save_dtype = "fp32";
  run.train.steps = 2;
  return run;
}

// The loss shown is that of the saved model, for `evaluate` and for a run that goes on in bf16.
TEST(Int8Training, ValidatesTheModelThatItSaves) {
  for (const char* extra : {kExperts, kDense}) {
    SCOPED_TRACE(extra);
    const TemporaryDirectory folder;
    RunConfig run = validated_run(folder.path(), extra);
    const TrainResult trained = Trainer(run).train();
    RunConfig saved = run;
    saved.model.path = trained.checkpoint;
    saved.model.init = "pretrained";
    saved.train.precision = "bf16";
    EXPECT_EQ(trained.after->loss, evaluate(saved).loss);
    EXPECT_NE(trained.after->loss, trained.before->loss);

    RunConfig in_bf16 = run;
    in_bf16.train.precision = "bf16";
    EXPECT_EQ(Trainer(in_bf16).train().after->loss, trained.after->loss);
    in_bf16.train.output += "_fresh";
    EXPECT_EQ(Trainer(in_bf16).train().before->loss, trained.before->loss);

    run.precision.validation = "train";
    const double in_int8 = Trainer(run).train().after->loss;
    EXPECT_NE(in_int8, trained.after->loss);
    expect_near({in_int8}, {trained.after->loss});
  }
}

TEST(Int8Training, ValidatesWithEqualBitsHoweverItIsPlanned) {
  const TemporaryDirectory folder;
  RunConfig base = validated_run(folder.path());
  base.train.steps = 1;
  const double want = Trainer(base).train().after->loss;
  int number = 0;
  for (const PlanChange& change : plan_changes()) {
    RunConfig run = base;
    run.train.output = folder.path() / std::to_string(number++);
    change.apply(run);
    EXPECT_EQ(Trainer(run).train().after->loss, want) << change.name;
  }
  RunConfig ranks = base;
  ranks.train.output = folder.path() / "ranks";
  ranks.train.micro_batch_size = 1;
  ranks.parallel.local_ranks = 2;
  RunConfig one = ranks;
  one.train.output = folder.path() / "one";
  one.parallel.local_ranks = 1;
  one.train.gradient_accumulation_steps = 2;
  EXPECT_EQ(Trainer(ranks).train().after->loss, Trainer(one).train().after->loss);
}

// Its weights are values of the frame: those of a layer at a time, and no states.
TEST(Int8Training, ValidatesWithoutStatesOfItsOwn) {
  const TemporaryDirectory folder;
  RunConfig run = validated_run(folder.path(), R"("hidden_size": 64, "intermediate_size": 96,
      "num_hidden_layers": 4)");
  const auto bytes = [&](const char* what) {
    const anabatic::testing::PlannedRun planned = anabatic::testing::plan_of(run);
    std::int64_t sum = 0;
    for (const MemoryRow& row : planned.budgeted.memory.rows)
      if (row.name == "validation" && row.what == what) sum += row.bytes;
    return sum;
  };
  const std::int64_t in_bf16 = bytes("arenas");
  EXPECT_EQ(bytes("states"), 0);
  run.precision.validation = "train";
  const std::int64_t as_trained = bytes("arenas");
  // Three matrices of four experts in bf16, the largest of a layer.
  constexpr std::int64_t kLayer = 2 * 3 * 4 * 64 * 96;
  if (anabatic::testing::has_optional_passes()) {  // else buffers share no bytes
    EXPECT_LE(in_bf16, as_trained + 2 * kLayer);
  }
}

// A grid with a delay is that of the bf16 run that goes on from there.
TEST(Int8Training, ValidatesInItsGrid) {
  const TemporaryDirectory folder;
  RunConfig run = validated_run(folder.path());
  run.quantization.enable = true;
  run.quantization.format = "q4_0";
  run.quantization.quant_delay = 2;
  run.train.steps = 4;
  run.train.save_every = 1;
  run.train.keep_last = 0;
  std::vector<double> want;
  {
    Trainer trainer(run);
    while (trainer.step()) want.push_back(trainer.evaluate().loss);
  }
  ASSERT_EQ(want.size(), 4u);
  run.train.precision = "bf16";
  for (const std::size_t steps : {3, 1}) {
    anabatic::testing::go_back_to(run.train.output, static_cast<std::int64_t>(steps));
    EXPECT_EQ(Trainer(run).evaluate().loss, want[steps - 1]) << steps;
  }
  run.quantization.quant_delay = 0;
  EXPECT_NE(Trainer(run).evaluate().loss, want[0]);
}

}  // namespace
}  // namespace anabatic::train
