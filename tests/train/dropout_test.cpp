// SPDX-License-Identifier: Apache-2.0
// Dropout in runs: where it is, that every cut, plan, resume and rank draws alike, that nothing but
// training has it, and what is refused.
#include "spec/dropout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "ir/op_schema.h"
#include "support/error_message.h"
#include "support/plan_changes.h"
#include "support/planned_run.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "support/tolerance.h"
#include "support/trained_run.h"
#include "train/evaluate.h"
#include "train/objective/run_model.h"
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
using anabatic::testing::tiny_run;
using anabatic::testing::trained_bytes;
using ::testing::AllOf;
using ::testing::HasSubstr;

// resid_pdrop, embd_pdrop and attn_pdrop are 0.1 where config.json has none of them.
const std::string kGpt2 =
    R"("model_type": "gpt2", "num_key_value_heads": 4, "num_local_experts": null,
       "num_experts_per_tok": null, "output_router_logits": false)";

RunConfig dropout_run(const std::filesystem::path& folder, const std::string& extra = "") {
  RunConfig run = tiny_run(folder, extra);
  run.train.steps = 4;
  run.dropout = {.residual = 0.2, .embedding = 0.1, .attention = 0.15};
  return run;
}

// The rate of each site of a graph, which its forward and its backward have alike.
std::map<std::string, double> sites_of(const ir::Graph& graph) {
  std::map<std::string, double> sites;
  for (const ir::Node& node : graph.nodes)
    if (node.op->name == "dropout" || node.attributes.contains(spec::kDropoutRate)) {
      const bool is_attention = node.op->name != "dropout";
      const double rate =
          spec::get_double(node.attributes, is_attention ? spec::kDropoutRate : "rate");
      const auto [site, is_new] = sites.try_emplace(
          spec::get_string(node.attributes, is_attention ? spec::kDropoutSite : "site"), rate);
      EXPECT_EQ(site->second, rate);
    }
  return sites;
}
std::map<std::string, double> sites_of(const RunConfig& run) {
  return sites_of(anabatic::testing::plan_of(run).budgeted.plan.training.graph);
}

constexpr const char* kOfProbabilities[] = {"layers.0.attention.probabilities.dropout",
                                            "layers.1.attention.probabilities.dropout"};

TEST(DropoutTraining, StandsAheadOfEachResidualSumAndBehindTheEmbedding) {
  const TemporaryDirectory folder, other;
  const std::map<std::string, double> of_experts = sites_of(dropout_run(folder.path()));
  EXPECT_EQ(of_experts, (std::map<std::string, double>{{"embedding.dropout", 0.1},
                                                       {"layers.0.attention.dropout", 0.2},
                                                       {kOfProbabilities[0], 0.15},
                                                       {"layers.0.experts.dropout", 0.2},
                                                       {"layers.1.attention.dropout", 0.2},
                                                       {kOfProbabilities[1], 0.15},
                                                       {"layers.1.experts.dropout", 0.2}}));
  RunConfig gpt2 = tiny_run(other.path(), kGpt2 + R"(, "embd_pdrop": 0.25)");
  EXPECT_EQ(sites_of(gpt2), (std::map<std::string, double>{{"embedding.dropout", 0.25},
                                                           {"layers.0.attention.dropout", 0.1},
                                                           {kOfProbabilities[0], 0.1},
                                                           {kOfProbabilities[1], 0.1},
                                                           {"layers.0.mlp.dropout", 0.1},
                                                           {"layers.1.attention.dropout", 0.1},
                                                           {"layers.1.mlp.dropout", 0.1}}));
  gpt2.dropout.residual = gpt2.dropout.attention = 0;
  EXPECT_EQ(sites_of(gpt2), (std::map<std::string, double>{{"embedding.dropout", 0.25}}));
  gpt2.dropout.embedding = 0;
  EXPECT_EQ(sites_of(gpt2), (std::map<std::string, double>{}));
}

// The ops of a step but dropout, with how often each is there.
std::map<std::string, int> other_ops_of(const RunConfig& run) {
  std::map<std::string, int> ops;
  for (const ir::Node& node : anabatic::testing::plan_of(run).budgeted.plan.training.graph.nodes)
    if (node.op->name != "dropout") ++ops[ir::op_and_form(node)];
  return ops;
}

TEST(DropoutTraining, LosesNoFusion) {
  for (const std::string& extra : {std::string(), kGpt2})
    for (const char* precision : {"bf16", "int8"}) {
      const TemporaryDirectory folder;
      RunConfig run = dropout_run(folder.path(), extra);
      run.train.precision = precision;
      const std::map<std::string, int> ops = other_ops_of(run);
      run.dropout = {.residual = 0, .embedding = 0, .attention = 0};
      EXPECT_EQ(other_ops_of(run), ops) << extra << ", " << precision;
    }
}

TEST(DropoutTraining, SaysAtItsStartWhatItDrops) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), kGpt2 + R"(, "embd_pdrop": 0)");
  EXPECT_EQ(dropout_to_string(run, load_run_model(run)),
            "dropout.residual 0.1 (config.json), dropout.attention 0.1 (config.json)");
  run.dropout = {.residual = 0, .embedding = 0.5, .attention = 0};
  EXPECT_EQ(dropout_to_string(run, load_run_model(run)), "dropout.embedding 0.5");
  const TemporaryDirectory other;
  run = tiny_run(other.path());
  EXPECT_EQ(dropout_to_string(run, load_run_model(run)), "");
}

TEST(DropoutTraining, HasEqualBitsHoweverItIsPlanned) {
  const TemporaryDirectory folder;
  RunConfig base = dropout_run(folder.path());
  base.train.precision = "bf16";
  const std::string want = trained_bytes(base);
  int number = 0;
  for (const PlanChange& change : plan_changes()) {
    RunConfig run = base;
    run.train.output = folder.path() / std::to_string(number++);
    change.apply(run);
    EXPECT_TRUE(trained_bytes(run) == want) << change.name;
  }
  base.train.output = folder.path() / "without";
  base.dropout = {.residual = 0, .embedding = 0, .attention = 0};
  EXPECT_FALSE(trained_bytes(base) == want);
}

// Rows that adapters read are kept for the backward, and may be recomputed with their draws.
TEST(DropoutTraining, OfAdaptersHasEqualBitsHoweverItIsPlanned) {
  const TemporaryDirectory folder;
  RunConfig base = dropout_run(folder.path());
  base.train.precision = "bf16";
  base.lora.targets = {"attention", "router"};
  base.lora.rank = 4;
  base.lora.dropout = 0.3;
  const std::string want = trained_bytes(base);
  int number = 0;
  for (const PlanChange& change : plan_changes()) {
    RunConfig run = base;
    run.train.output = folder.path() / std::to_string(number++);
    change.apply(run);
    if (run.memory.parameters == "disk") continue;  // which lora refuses
    EXPECT_TRUE(trained_bytes(run) == want) << change.name;
  }
  base.train.output = folder.path() / "without";
  base.lora.dropout = 0;
  EXPECT_FALSE(trained_bytes(base) == want);
}

TEST(DropoutTraining, FitsASmallerBudgetWithEqualBits) {
  if (!anabatic::testing::has_optional_passes())
    GTEST_SKIP() << "the peak is at no value that can be computed again";
  const TemporaryDirectory folder;
  RunConfig run = dropout_run(folder.path(), R"("hidden_size": 64, "intermediate_size": 96)");
  run.train.precision = "bf16";
  run.train.micro_batch_size = 4;
  run.train.steps = 2;
  run.data.sequence_length = 32;
  const std::string want = trained_bytes(run);
  EXPECT_TRUE(trained_bytes(recomputing(run, folder.path())) == want);
}

TEST(DropoutOfAdapters, IsRecomputedWithItsBits) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), kGpt2);
  run.train.precision = "bf16";
  run.train.steps = 2;
  run.lora.targets = {"attention"};
  run.lora.dropout = 0.3;
  run.compiler.trivial_planners = false;
  run.compiler.disable_passes = {"fuse_norm_linear"};  // products would drop what they read
  const std::string want = trained_bytes(run);
  run.memory.recompute = {"layers.0.attention.q_k_v.lora_dropout"};
  run.train.output = folder.path() / "recomputed";
  const anabatic::testing::PlannedRun planned = anabatic::testing::plan_of(run);
  EXPECT_TRUE(
      std::ranges::any_of(planned.budgeted.plan.training.graph.nodes, [](const ir::Node& node) {
        return node.op->name == "dropout" && node.tag.phase == ir::Phase::kRecompute;
      }));
  EXPECT_TRUE(trained_bytes(run) == want);
}

// The step keeps no mask, and at most one more gradient [T, hidden] at its peak. Attention has bits
// of a block of rows and keys for each thread.
TEST(DropoutTraining, TakesNoMemoryForMasks) {
  if (!anabatic::testing::has_optional_passes())
    GTEST_SKIP() << "trivial planners give every value bytes of its own";
  const TemporaryDirectory folder;
  RunConfig run = dropout_run(folder.path(), R"("num_hidden_layers": 6)");
  run.train.precision = "bf16";
  const auto frame = [&] {
    return anabatic::testing::plan_of(run).budgeted.plan.training.plan.frame_bytes;
  };
  const std::int64_t with_dropout = frame();
  run.dropout = {.residual = 0, .embedding = 0, .attention = 0};
  const std::int64_t rows = run.train.micro_batch_size * run.data.sequence_length;
  constexpr std::int64_t kHidden = 16, kElement = 2, kBits = 5 << 10;
  EXPECT_LE(with_dropout, frame() + rows * kHidden * kElement + 128 + run.device.threads * kBits);
}

TEST(DropoutTraining, ResumesWithEqualBits) {
  const TemporaryDirectory folder;
  RunConfig run = dropout_run(folder.path());
  run.train.save_every = 2;
  run.train.keep_last = 0;
  const std::string want = trained_bytes(run);
  anabatic::testing::go_back_to(run.train.output, 2);
  EXPECT_TRUE(trained_bytes(run) == want);
}

// The same samples in other micro-batches: losses differ by rounding alone, which they do not where
// the draws are others.
TEST(DropoutTraining, DrawsAlikeForEveryCutIntoMicroBatches) {
  const TemporaryDirectory folder;
  RunConfig run = dropout_run(folder.path(), kGpt2);  // experts would balance each micro-batch
  run.train.precision = "fp32";
  std::vector<double> want;
  const auto largest_difference = [&](const RunConfig& of) {
    const std::vector<double> got = losses_of(of);
    double largest = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      largest = std::max(largest, std::abs(got[i] - want.at(i)) /
                                      anabatic::testing::loss_tolerance(want[i], DType::kFloat32));
    return largest;
  };
  for (const std::int64_t size : {4, 2, 1}) {
    run.train.micro_batch_size = size;
    run.train.gradient_accumulation_steps = 4 / size;
    run.train.output = folder.path() / std::to_string(size);
    Trainer(run).train();
    if (want.empty()) want = losses_of(run);
    EXPECT_LE(largest_difference(run), 1) << size;
  }
  for (double RunConfig::Dropout::*rate :
       {&RunConfig::Dropout::residual, &RunConfig::Dropout::attention}) {
    RunConfig other = run;
    other.dropout.*rate += 0.01;
    other.train.output = folder.path() / "other";
    std::filesystem::remove_all(other.train.output);
    Trainer(other).train();
    EXPECT_GT(largest_difference(other), 1);
  }
}

TEST(DropoutTraining, DrawsAlikeOnRanks) {
  const TemporaryDirectory folder;
  RunConfig run = dropout_run(folder.path());
  run.train.steps = 2;
  run.train.gradient_accumulation_steps = 2;
  run.train.gradient_leaves = 2;
  run.train.output = folder.path() / "one";
  const auto state = anabatic::testing::training_state(Trainer(run).train().checkpoint);
  const std::vector<double> want = losses_of(run);
  run.train.gradient_accumulation_steps = 1;
  run.parallel.local_ranks = 2;
  run.train.output = folder.path() / "two";
  EXPECT_EQ(anabatic::testing::training_state(Trainer(run).train().checkpoint), state);
  run.parallel.expert = 2;  // sums go in another order
  run.train.output = folder.path() / "experts";
  Trainer(run).train();
  const std::vector<double> got = losses_of(run);
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_LE(std::abs(got.at(i) - want[i]),
              anabatic::testing::loss_tolerance(want[i], DType::kFloat32));
}

// A run's validation, and that of a run of its checkpoint which drops nothing, are one function.
TEST(DropoutTraining, DropsNothingInValidation) {
  const TemporaryDirectory folder;
  RunConfig run = dropout_run(folder.path(), kGpt2);
  run.data.validation = run.data.train;
  EXPECT_EQ(sites_of(anabatic::testing::plan_of(run).budgeted.plan.evaluation.value().graph).size(),
            0u);
  const TrainResult result = Trainer(run).train();
  ASSERT_TRUE(result.after);
  RunConfig evaluation = run;
  evaluation.model.path = result.checkpoint;
  evaluation.model.init = "pretrained";
  const double with_rates = evaluate(evaluation).loss;
  evaluation.dropout = {.residual = 0, .embedding = 0, .attention = 0};
  EXPECT_EQ(evaluate(evaluation).loss, with_rates);
  EXPECT_EQ(with_rates, result.after->loss);
}

TEST(DropoutTraining, HasNoneForPairs) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), kGpt2);
  run.train.objective = "dpo";
  const model::Dropout rates = dropout_of(run, model::load_config(run.model.path));
  EXPECT_EQ(rates.residual + rates.embedding + rates.attention + rates.adapter, 0);
  EXPECT_EQ(dropout_to_string(run, model::load_config(run.model.path)), "");
  run.dropout.residual = 0.1;
  run.lora.targets = {"attention"};
  run.lora.dropout = 0.2;
  const std::string problems = ::testing::PrintToString(problems_of(run));
  EXPECT_THAT(problems,
              AllOf(HasSubstr("dropout.residual: expected 0 with train.objective: dpo, got 0.1"),
                    HasSubstr("lora.dropout: expected 0 with train.objective: dpo, got 0.2")));
}

TEST(DropoutOfAdapters, IsSharedByProductsOfTheSameRowsAndKeptInFiles) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), kGpt2);
  run.dropout = {.residual = 0, .embedding = 0, .attention = 0};
  run.train.steps = 2;
  run.lora.targets = {"attention", "mlp", "head"};
  run.lora.dropout = 0.125;
  const std::map<std::string, double> sites = sites_of(run);
  EXPECT_EQ(sites.size(), 2u * 4 + 1) << "q, k and v of a layer, o, up, down, and the head";
  for (const auto& [site, rate] : sites) EXPECT_EQ(rate, 0.125) << site;
  const std::filesystem::path saved = Trainer(run).train().checkpoint;
  const Json json = parse_json(read_file(saved / "adapter_config.json", 1 << 20));
  EXPECT_EQ(json.at("lora_dropout"), 0.125);

  run.lora = {.from = saved.string()};
  EXPECT_EQ(sites_of(run), sites);
  run.lora.dropout = 0.5;
  EXPECT_EQ(sites_of(run).begin()->second, 0.5);
  run.lora.dropout = 0;
  EXPECT_TRUE(sites_of(run).empty());
}

TEST(DropoutOfAdapters, IsOfWhatAReadsAlone) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.lora.targets = {"attention", "router", "embedding", "head"};
  const ir::Graph graph =
      forward_graph(run, load_run_model(run), {.num_tokens = 8, .dropout = {.adapter = 0.25}});
  const auto is_of = [&](ir::ValueId value, std::string_view what) {
    return text(graph.value(value).name).find(what) != std::string_view::npos;
  };
  int num_dropped = 0;
  for (const ir::Node& node : graph.nodes)
    if (node.op->name == "linear") {
      EXPECT_EQ(is_of(node.inputs[0], "lora_dropout"), is_of(node.inputs[1], "lora_A"));
      num_dropped += is_of(node.inputs[0], "lora_dropout") ? 1 : 0;
    } else {
      for (const ir::ValueId input : node.inputs) EXPECT_FALSE(is_of(input, "lora_dropout"));
    }
  EXPECT_EQ(num_dropped, 2 * 5 + 1) << "q, k, v, o and the router of two layers, and the head";
}

TEST(DropoutOfAdapters, IsRefusedForExperts) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.lora.targets = {"all"};
  run.lora.dropout = 0.1;
  EXPECT_THAT(message_of<InvalidArgument>([&] { Trainer(run).train(); }),
              HasSubstr("lora.dropout: expected 0 with adapters of experts, which have no dropout "
                        "in PEFT either, got 0.1"));
}

TEST(DropoutKeys, RefuseRatesThatNoDrawTellsApart) {
  const auto message = [](const char* key, const char* value) {
    return message_of<InvalidArgument>([&] { load_run_config({}, {{key, {value}}}); });
  };
  for (const char* value : {"1", "-0.1", "1e-6", "0.9999999", "nan", "2"})
    EXPECT_THAT(message("dropout.residual", value),
                HasSubstr("dropout.residual: expected 0, or a rate of 0.000015 to 0.999985, got "))
        << value;
  EXPECT_THAT(message("dropout.embedding", "some"), HasSubstr("expected a number, got 'some'"));
  EXPECT_THAT(message("lora.dropout", "1"), HasSubstr("lora.dropout: expected 0, or a rate of"));
  EXPECT_EQ(load_run_config({}, {{"dropout.residual", {"0.5"}}}).dropout.residual, 0.5);
  EXPECT_THAT(message("lora.dropout", "0.1"), HasSubstr("neither lora.targets nor lora.from"));
  const TemporaryDirectory folder;
  const RunConfig run = tiny_run(folder.path(), kGpt2 + R"(, "resid_pdrop": 1.0)");
  EXPECT_THAT(message_of<InvalidArgument>([&] { Trainer(run).train(); }),
              HasSubstr("resid_pdrop: expected 0, or a rate of 0.000015 to 0.999985, got 1; "
                        "dropout.residual overrides it"));
}

}  // namespace
}  // namespace anabatic::train
