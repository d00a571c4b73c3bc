// SPDX-License-Identifier: Apache-2.0
// Runs of several ranks: that they are runs of one with as many micro-batches, that nothing but the
// numbers of the run decides their bits, and what becomes of the others when one fails.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "anabatic/error.h"
#include "anabatic/session.h"
#include "base/log.h"
#include "base/text.h"
#include "device/topology.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "support/tolerance.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_search.h"
#include "train/objective/run_model.h"
#include "train/open_dataset.h"
#include "train/ranks/planned_exchanges.h"
#include "train/ranks/run_mesh.h"
#include "train/run_plan.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::checkpoint_bytes;
using anabatic::testing::go_back_to;
using anabatic::testing::json_lines;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using anabatic::testing::write_tiny_tokens;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kBytesOfSums = 2000;  // that a rank sends for sums of a step, at most

// What a run leaves: the state after its last step, and its lines without times and memory.
struct Outcome {
  std::string checkpoint, lines;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(const RunConfig& run) {
  Outcome outcome{checkpoint_bytes(Trainer(run).train().checkpoint), {}};
  for (const nlohmann::json& line : json_lines(fs::path(run.train.output) / "metrics.jsonl"))
    for (const char* key : {"step", "loss", "aux_loss", "grad_norm", "tokens", "experts"})
      if (line.contains(key)) outcome.lines += line[key].dump() + " ";
  return outcome;
}

// A run with an output of its own, over the model and the tokens of `folder`.
RunConfig run_of(const TemporaryDirectory& folder, std::int64_t ranks, std::int64_t accumulation) {
  // Stacks of experts are large enough to be cut over ranks, and their last panels are not full.
  RunConfig run = tiny_run(folder.path(), "\"intermediate_size\": 1100");
  run.train.output = folder.path() / fmt::format("ranks-{}-{}", ranks, accumulation);
  run.parallel.local_ranks = ranks;
  run.train.gradient_accumulation_steps = accumulation;
  // Its products add chunks of rows to a gradient one by one, across micro-batches.
  run.fusions.off.insert("fuse_head_loss");
  return run;
}

template <class Refusal>
std::string refusal_of(RunConfig run) {
  try {
    Trainer{std::move(run)};
  } catch (const Refusal& error) {
    return error.what();
  }
  return "it was taken, or refused for another reason";
}

class Messages : public RunListener {
 public:
  void on_message(Severity, const std::string& message) override { text += message + "\n"; }
  std::string text;
};

class Forms : public ::testing::TestWithParam<std::string> {};

RunConfig with_form(RunConfig run, const std::string& form) {
  if (form == "fp32") return run;
  run.train.precision = "bf16";
  if (form == "bf16 moments") run.optimizer.state_precision = "bf16";
  if (form == "int8 moments") run.optimizer.state_precision = "int8";
  return run;
}

TEST_P(Forms, StepsOfTwoRanksAreThoseOfOneToTheBit) {
  const TemporaryDirectory folder;
  const Outcome one = outcome_of(with_form(run_of(folder, 1, 2), GetParam()));
  EXPECT_EQ(outcome_of(with_form(run_of(folder, 2, 1), GetParam())), one);
}

// A rank adds its micro-batches one by one, and the ranks' sums are the leaves of a balanced tree.
TEST_P(Forms, StepsOfFourRanksAreThoseOfTwoToTheBit) {
  const TemporaryDirectory folder;
  const Outcome two = outcome_of(with_form(run_of(folder, 2, 2), GetParam()));
  EXPECT_EQ(outcome_of(with_form(run_of(folder, 4, 1), GetParam())), two);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Forms,
                         ::testing::Values("fp32", "bf16", "bf16 moments", "int8 moments"),
                         [](const auto& form) {
                           std::string name = form.param;
                           std::erase(name, ' ');
                           return name;
                         });

// Equal leaves are one tree, whoever has them: also where a product adds rows to a gradient in
// chunks, which are part of a leaf.
TEST_P(Forms, StepsOfAsManyLeavesAreEqualToTheBit) {
  const TemporaryDirectory folder;
  const auto outcome = [&](std::int64_t ranks, const char* optimizer) {
    RunConfig run = with_form(run_of(folder, ranks, 8 / ranks), GetParam());
    run.fusions.off.clear();
    run.train.steps = 4;
    run.train.output += optimizer;
    run.train.gradient_leaves = 4;
    run.parallel.optimizer = optimizer;
    return outcome_of(run);
  };
  const Outcome one = outcome(1, "sharded");
  EXPECT_EQ(outcome(2, "sharded"), one);
  if (GetParam() == "bf16") {
    EXPECT_EQ(outcome(4, "sharded"), one);
    EXPECT_EQ(outcome(2, "replicated"), one);
  }
}

std::vector<double> losses_of(const RunConfig& run) {
  Trainer(run).train();
  std::vector<double> losses;
  for (const nlohmann::json& line : json_lines(fs::path(run.train.output) / "metrics.jsonl"))
    losses.push_back(line["loss"].get<double>());
  return losses;
}

void expect_close(double loss, double want, DType dtype) {
  EXPECT_LE(std::abs(loss - want), anabatic::testing::loss_tolerance(want, dtype));
}

// Label slow, as all of this suite.
TEST(ManyRanks, ComputeForTwentyStepsWhatOneRankDoes) {
  const TemporaryDirectory folder;
  for (const char* form : {"fp32", "bf16", "bf16 moments", "int8 moments"}) {
    const auto outcome = [&](std::int64_t ranks) {
      RunConfig run = with_form(run_of(folder, ranks, 8 / ranks), form);
      run.train.output += form;
      run.fusions.off.clear();
      run.train.steps = 20;
      run.train.gradient_leaves = 8;
      return outcome_of(run);
    };
    const Outcome one = outcome(1);
    for (const std::int64_t ranks : {2, 4, 8})
      EXPECT_EQ(outcome(ranks), one) << form << ", " << ranks << " ranks";
  }
}

TEST(ManyRanks, ShareExpertsForTwentySteps) {
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder, 8, 1);
  run.train.steps = 20;
  const std::vector<double> whole = losses_of(run);
  for (const std::int64_t expert : {2, 4}) {
    run.train.output += fmt::format("-experts-{}", expert);
    run.parallel.expert = expert;
    const std::vector<double> shared = losses_of(run);
    ASSERT_EQ(shared.size(), whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i)
      expect_close(shared[i], whole[i], DType::kFloat32);
  }
}

TEST(Ranks, UpdatesInTheBackwardOfAsManyLeavesAreEqualToo) {
  const TemporaryDirectory folder;
  const auto outcome = [&](std::int64_t ranks) {
    RunConfig run = with_form(run_of(folder, ranks, 2 / ranks), "bf16");
    run.train.steps = 4;
    run.train.gradient_leaves = 2;
    run.parallel.optimizer = "replicated";
    run.optimizer.update = "in_backward";
    return outcome_of(run);
  };
  EXPECT_EQ(outcome(2), outcome(1));
}

// Experts are cut over ranks that have several leaves each.
TEST(Ranks, SharedExpertsHaveLeavesToo) {
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder, 2, 4);
  run.parallel.expert = 2;
  run.train.steps = 4;
  const std::vector<double> one = losses_of(run);
  run.train.output += "-leaves";
  run.train.gradient_leaves = 4;
  const std::vector<double> leaves = losses_of(run);
  for (std::size_t i = 0; i < one.size(); ++i) expect_close(leaves[i], one[i], DType::kFloat32);
}

TEST(Ranks, LeavesThatMicroBatchesCannotFillAreRefused) {
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder, 2, 3);
  run.train.gradient_leaves = 4;
  EXPECT_THAT(refusal_of<InvalidArgument>(run),
              HasSubstr("train.gradient_leaves: 4: expected a multiple of 2 micro-batches a rank, "
                        "one or more a leaf, got train.gradient_accumulation_steps: 3; the nearest "
                        "are 2 and 4"));
  run.train.gradient_leaves = 6;
  EXPECT_THAT(refusal_of<InvalidArgument>(run),
              HasSubstr("expected gradient leaves / data a power of two: 6 / 2 = 3; nearest "
                        "setting: train.gradient_leaves 8"));
}

// Where each rank keeps all of the optimizer's state, the bits are the same.
TEST(Ranks, ShardedUpdatesAreThoseOfAllRanksAlike) {
  const TemporaryDirectory folder;
  for (const char* form : {"bf16", "fp32"}) {
    RunConfig run = with_form(run_of(folder, 3, 1), form);
    run.train.output += form;
    const Outcome sharded = outcome_of(run);
    run.train.output += "-replicated";
    run.parallel.optimizer = "replicated";
    EXPECT_EQ(outcome_of(run), sharded) << form;
  }
}

// To the bit where weighted rows are not rounded before their sum. That pass knows the forms that
// fuse_activation makes.
void expect_first_loss(double loss, double want) {
  if (!anabatic::testing::has_pass("move_router_weight") ||
      !anabatic::testing::has_pass("fuse_activation"))
    return expect_close(loss, want, DType::kBFloat16);
  EXPECT_EQ(loss, want);
}

// Ranks that share experts compute what ranks do that have all of them: the first loss to the bit,
// the later ones up to the order of sums in the gradients of experts.
TEST(Ranks, SharedExpertsLearnAsWholeOnesDo) {
  const TemporaryDirectory folder;
  for (const char* form : {"fp32", "bf16"}) {
    const auto with_experts = [&](std::int64_t ranks, std::int64_t experts) {
      RunConfig run = with_form(run_of(folder, ranks, 1), form);
      run.train.output += fmt::format("-{}-experts-{}", form, experts);
      run.parallel.expert = experts;
      return losses_of(run);
    };
    for (const auto& [ranks, experts] : {std::pair{2, 2}, {4, 2}}) {
      const std::vector<double> whole = with_experts(ranks, 1),
                                shared = with_experts(ranks, experts);
      ASSERT_EQ(whole.size(), shared.size());
      expect_first_loss(shared[0], whole[0]);
      const DType dtype = form == std::string("fp32") ? DType::kFloat32 : DType::kBFloat16;
      for (std::size_t i = 1; i < whole.size(); ++i) expect_close(shared[i], whole[i], dtype);
    }
  }
}

// A checkpoint has whole tensors, whoever held which part of them: the first loss after it is the
// same to the bit, the second one, which moments have a part in, up to the order of sums.
// A step that lacks room is as if it had not been: its bits are those of a run with room for all.
TEST(Ranks, StepsThatLackRoomForExpertsRunAgain) {
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder, 2, 2);
  run.parallel.expert = 2;
  const Outcome whole = outcome_of(run);
  run.train.output += "-again";
  run.parallel.expert_capacity = 1;
  std::string warnings;
  const LogScope log([&](Severity, const std::string& text) { warnings += text + "\n"; });
  EXPECT_EQ(outcome_of(run), whole);
  EXPECT_THAT(warnings, AllOf(HasSubstr("[train] step 1: "),
                              HasSubstr(" rows come to the experts of one rank in layer ")));
}

TEST(Ranks, SharedExpertsGoOnFromAnyCheckpoint) {
  const TemporaryDirectory folder;
  for (const std::int64_t wrote : {2, 4}) {
    RunConfig run = with_form(run_of(folder, 4, 1), "bf16");
    run.train.output += fmt::format("-{}", wrote);
    run.train.steps = 6;
    run.train.save_every = 4;
    run.parallel.expert = wrote;
    const std::vector<double> whole = losses_of(run);
    for (const std::int64_t reads : {1, 2, 4}) {
      if (reads == 6 - wrote) continue;  // the other way round is like it
      go_back_to(run.train.output, 4);
      run.parallel.expert = reads;
      const std::vector<double> resumed = losses_of(run);
      ASSERT_EQ(resumed.size(), whole.size());
      expect_first_loss(resumed[4], whole[4]);
      expect_close(resumed[5], whole[5], DType::kBFloat16);
      if (reads == wrote) {
        EXPECT_EQ(resumed[5], whole[5]) << wrote;
      }
    }
  }
}

TEST(Ranks, BitsAreThoseOfTheRunWhateverElseDiffers) {
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder, 3, 2);
  const Outcome once = outcome_of(run);
  run.train.output += "-again";
  EXPECT_EQ(outcome_of(run), once);
  run.train.output += "-threads";
  run.device.threads = 6;
  EXPECT_EQ(outcome_of(run), once);
  run.train.output += "-awaited-at-once";
  run.compiler.trivial_planners = run.compiler.poison = true;
  EXPECT_EQ(outcome_of(run), once);
  run.train.output += "-by-exchanges-alone";
  run.compiler.trivial_planners = run.compiler.poison = false;
  run.parallel.overlap = false;
  EXPECT_EQ(outcome_of(run), once);
}

TEST(Ranks, TellWhatTheirExchangesTake) {
  const TemporaryDirectory folder;
  const RunConfig run = run_of(folder, 3, 2);
  outcome_of(run);
  const fs::path output = run.train.output;
  const auto lines = json_lines(output / "metrics.jsonl");
  ASSERT_EQ(std::ssize(lines), run.train.steps);
  std::int64_t bytes = 0;
  for (const char* file : {"metrics.jsonl", "metrics.rank-1.jsonl", "metrics.rank-2.jsonl"}) {
    const auto own = json_lines(output / file);
    ASSERT_EQ(own.size(), lines.size()) << file;
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT_EQ(own[i]["step"], lines[i]["step"]);
      EXPECT_GT(own[i]["comm_busy_s"], 0);
      EXPECT_GT(own[i]["comm_exposed_s"], 0);
      EXPECT_LE(own[i]["comm_exposed_s"], own[i]["step_time_s"]);
      EXPECT_NE(own[i].value("waited_for", -1), file == std::string("metrics.jsonl") ? 0 : 3);
    }
    bytes += own[0]["comm_bytes"].get<std::int64_t>();
    EXPECT_EQ(own[0]["comm_bytes"], own[1]["comm_bytes"]);
  }
  // Each rank sends a third of every gradient to each other one, and its sum of a third to both.
  // Panels pad the gradients.
  const model::ModelConfig config = load_run_model(run);
  EXPECT_GT(bytes, 4 * 4 * config.counts.total);
  // As planned, but for the sums of a step. The plan has the mean of the ranks, rounded down.
  const std::vector<PlannedExchange> planned = planned_exchanges(
      plan_run(run, config, device::describe_cpu(1), plan::default_efficiency())->training,
      mesh_of(run), run.train.gradient_accumulation_steps);
  EXPECT_GE(bytes, 3 * sent_bytes(planned));
  EXPECT_LT(bytes, 3 * (sent_bytes(planned) + std::ssize(planned) + kBytesOfSums));
  const RunConfig alone = run_of(folder, 1, 1);
  outcome_of(alone);
  EXPECT_FALSE(
      json_lines(fs::path(alone.train.output) / "metrics.jsonl")[0].contains("comm_bytes"));
}

TEST(Ranks, ExchangeOverEmulatedLinks) {
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder, 2, 1);
  const Outcome plain = outcome_of(run);
  const fs::path file = folder.path() / "cluster.json";
  const auto set_ranks = [&](int ranks) {
    std::ofstream(file) << fmt::format(
        R"({{"levels": [{{"name": "node", "ranks": {}, "latency_us": 3000}}]}})", ranks);
  };
  set_ranks(2);
  run.parallel.emulate = file;
  run.train.output += "-emulated";
  EXPECT_EQ(outcome_of(run), plain);
  for (const nlohmann::json& line : json_lines(fs::path(run.train.output) / "metrics.jsonl"))
    EXPECT_GT(line["comm_exposed_s"], 0.003);
  set_ranks(1);
  EXPECT_THAT(refusal_of<InvalidArgument>(run),
              HasSubstr("cluster.json: expected devices for 2 ranks, got 1"));
}

TEST(Ranks, GoOnFromACheckpointOfAnyNumber) {
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder, 2, 1);
  run.train.save_every = 4;
  const Outcome whole = outcome_of(run);
  go_back_to(run.train.output, 4);
  run.parallel.local_ranks = 1;
  run.train.gradient_accumulation_steps = 2;
  EXPECT_EQ(outcome_of(run), whole);
  go_back_to(run.train.output, 4);
  run.train.gradient_accumulation_steps = 3;
  EXPECT_THAT(refusal_of<InvalidArgument>(run),
              AllOf(HasSubstr("parallel.local_ranks: the checkpoint has 2, this run 1"),
                    HasSubstr("has 2 micro-batches: train.gradient_accumulation_steps: 2 keeps")));
  run.parallel.local_ranks = 3;
  run.train.gradient_accumulation_steps = 1;
  EXPECT_THAT(refusal_of<InvalidArgument>(run),
              HasSubstr("has 2 micro-batches: parallel.local_ranks: 2 with "
                        "train.gradient_accumulation_steps: 1 keeps them"));
}

// Nobody edits the config, however often the number of ranks changes.
TEST(Ranks, KeepTheBatchOfTheirCheckpoint) {
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder, 4, 1);
  run.train.steps = 8;
  run.train.save_every = 2;
  run.train.keep_last = 0;
  const Outcome whole = outcome_of(run);
  go_back_to(run.train.output, 2);
  run.parallel.local_ranks = 1;
  Messages messages;
  Trainer(run, messages).train();
  EXPECT_THAT(messages.text, AllOf(HasSubstr("train.gradient_accumulation_steps is 4 instead of 1: "
                                             "1 ranks go on with the 4 micro-batches a step"),
                                   HasSubstr("train.gradient_leaves is 4")));
  go_back_to(run.train.output, 4);
  Trainer(run).train();
  go_back_to(run.train.output, 6);
  run.parallel.local_ranks = 2;
  const Outcome resumed = outcome_of(run);
  EXPECT_EQ(resumed.lines, whole.lines);
  EXPECT_TRUE(resumed.checkpoint == whole.checkpoint);
}

TEST(Ranks, TheErrorOfOneEndsAllAndIsToldOnce) {
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder, 2, 1);
  run.parallel.optimizer = "replicated";  // the first rank has all that it saves
  run.data.shuffle = false;
  run.train.steps = 20;
  // The second rank is the first to read the second file: it has the last samples of each four. The
  // one at the end of the first file may go on into the second.
  const ModelSession session(run, false);
  for (int documents = 16;; ++documents) {
    run.data.train = {write_tiny_tokens(folder.path(), "a", documents, 1)};
    if (open_dataset(run.data.train, run, session.config()).num_samples() % 4 == 3) break;
  }
  run.data.train.push_back(write_tiny_tokens(folder.path(), "b", 60, 2));
  std::string message;
  try {
    Trainer trainer(run);
    fs::resize_file(folder.path() / "b.bin", 0);
    trainer.train();
  } catch (const CommError& error) {
    message = error.what();
  }
  EXPECT_THAT(message, AllOf(HasSubstr("rank 1: "), HasSubstr("b.bin"), HasSubstr("is saved")));
  EXPECT_TRUE(latest_checkpoint(run.train.output)) << message;
}

TEST(Ranks, WhatOthersHoldInPartsIsNotSavedAfterAnError) {
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder, 2, 1);
  run.optimizer.learning_rate = 1e6;
  run.optimizer.warmup_steps = 0;
  std::string message;
  try {
    Trainer(run).train();
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("other ranks hold parts of it"));
  EXPECT_FALSE(latest_checkpoint(run.train.output)) << message;
}

TEST(Ranks, WhatTheyCannotDoYetIsNamed) {
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder, 2, 1);
  run.memory.optimizer_state = "disk";
  EXPECT_THROW(Trainer{run}, Unsupported);
  const Settings settings{{"model.path", {run.model.path}}, {"parallel.local_ranks", {"2"}}};
  EXPECT_THROW(Session{settings}, Unsupported);
}

TEST(Ranks, EveryKeyThatBreaksAnEquationIsNamedAtOnce) {
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder, 32, 1);
  run.parallel.data = 8;
  run.parallel.tensor = 4;
  run.parallel.pipeline = 2;
  run.parallel.expert = 3;
  EXPECT_THAT(refusal_of<InvalidArgument>(run),
              AllOf(HasSubstr("64 wanted, 32 there; nearest setting: parallel."),
                    HasSubstr("(tensor · context · data) % expert = 0: 32 % 3 = 2"),
                    HasSubstr("experts of a layer % expert = 0: 4 % 3 = 1")));
  run = run_of(folder, 1, 1);
  run.parallel.world = 4;
  EXPECT_THAT(refusal_of<InvalidArgument>(run),
              HasSubstr("expected parallel.world: auto or 1, the ranks that were started, got 4"));
}

TEST(Ranks, MoreOfThemThanSamplesAreRefused) {
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder, 8, 1);
  run.data.train = {write_tiny_tokens(folder.path(), "short", 1, 1)};
  EXPECT_THAT(refusal_of<InvalidArgument>(run), AllOf(HasSubstr("data <= samples: 8 wanted, "),
                                                      HasSubstr("nearest setting: ranks ")));
}

TEST(Ranks, FormsThatAreNotThereYetAreNamedTogether) {
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder, 4, 1);
  run.parallel.tensor = 2;
  run.parallel.pipeline = 2;
  EXPECT_THAT(refusal_of<Unsupported>(run),
              AllOf(HasSubstr("parallel.tensor: 2"), HasSubstr("parallel.pipeline: 2")));
}

}  // namespace
}  // namespace anabatic::train
