// SPDX-License-Identifier: Apache-2.0
#include "train/run_config.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "anabatic/error.h"
#include "support/error_message.h"
#include "support/tiny_run.h"
#include "train/sampler.h"
#include "train/schedule.h"

namespace anabatic::train {
namespace {

using ::testing::HasSubstr;

std::filesystem::path write_yaml(const std::string& text) {
  static const anabatic::testing::TemporaryDirectory folder;
  const auto path = folder.path() / "run.yaml";
  std::ofstream(path) << text;
  return path;
}

TEST(RunConfig, FlagsWinOverTheFile) {
  const auto path = write_yaml("train: {steps: 7, seed: 3}\noptimizer: {betas: [0.8, 0.9]}\n");
  const RunConfig config =
      load_run_config(path, {{"train.steps", {"9"}}, {"data.train", {"a.txt", "b.txt"}}});
  EXPECT_EQ(config.train.steps, 9);
  EXPECT_EQ(config.train.seed, 3);
  EXPECT_EQ(config.optimizer.betas, (std::vector<double>{0.8, 0.9}));
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"a.txt", "b.txt"}));
}

TEST(RunConfig, KnowsHowTheOptimizerKeepsItsStateAndWhenItRuns) {
  const RunConfig config =
      load_run_config(write_yaml("optimizer: {state_precision: bf16, update: in_backward}\n"), {});
  EXPECT_EQ(config.optimizer.state_precision, "bf16");
  EXPECT_EQ(config.optimizer.update, "in_backward");
  EXPECT_THAT(
      testing::message_of<InvalidArgument>([] {
        load_run_config({}, {{"optimizer.state_precision", {"fp8"}}});
      }),
      HasSubstr("optimizer.state_precision: expected one of [fp32, bf16, int8], got 'fp8'"));
}

TEST(RunConfig, PutsMastersOnDiskBesideMomentsAlone) {
  EXPECT_EQ(load_run_config({}, {{"memory.masters", {"disk"}}}).memory.masters, "disk");
  for (const auto& [key, value] :
       {std::pair{"memory.optimizer_state", "resident"}, std::pair{"train.precision", "fp32"}})
    EXPECT_THAT(
        testing::message_of<InvalidArgument>([&] {
          load_run_config({}, {{"memory.masters", {"disk"}}, {key, {value}}});
        }),
        HasSubstr("expected memory.optimizer_state: disk or auto and train.precision: bf16"));
}

TEST(RunConfig, PutsParametersOnDiskBesideMomentsAlone) {
  EXPECT_EQ(load_run_config({}, {{"memory.parameters", {"disk"}}}).memory.parameters, "disk");
  EXPECT_THAT(testing::message_of<InvalidArgument>([&] {
                load_run_config({}, {{"memory.parameters", {"disk"}},
                                     {"memory.optimizer_state", {"resident"}}});
              }),
              HasSubstr("expected memory.optimizer_state: disk or auto, got resident"));
}

TEST(RunConfig, ReportsEveryProblemAtOnce) {
  const auto path =
      write_yaml("train: {step: 7, precision: fp8}\noptimizer: {epsilon: x}\nmodel: 3\n");
  const std::string message = testing::message_of<InvalidArgument>([&] {
    load_run_config(path, {{"data.sequence_length", {"0"}}});
  });
  EXPECT_THAT(message, HasSubstr("train.step: unknown key; did you mean train.steps?"));
  EXPECT_THAT(message, HasSubstr("train.precision: expected one of [auto, adaptive, bf16, fp16, "
                                 "fp32, int8, mixed], got 'fp8'"));
  EXPECT_THAT(message, HasSubstr("optimizer.epsilon: expected a number, got 'x'"));
  EXPECT_THAT(message, HasSubstr("model: unknown key"));
  EXPECT_THAT(message, HasSubstr("data.sequence_length: expected an integer >= 1, got 0"));
}

TEST(RunConfig, KnowsNamesOfOtherTrainers) {
  const auto refusal = [](const char* name) {
    return testing::message_of<InvalidArgument>([&] { load_run_config({}, {{name, {"1"}}}); });
  };
  for (const auto& [name, key] : {std::pair("optimizer.lr", "optimizer.learning_rate"),
                                  {"learning_rate", "optimizer.learning_rate"},
                                  {"train.epochs", "train.steps"},
                                  {"per_device_train_batch_size", "train.micro_batch_size"},
                                  {"gradient_checkpointing", "memory.recompute"},
                                  {"lr_scheduler_type", "optimizer.schedule"},
                                  {"max_grad_norm", "optimizer.clip_grad_norm"},
                                  {"target_modules", "lora.targets"},
                                  {"lora.r", "lora.rank"}})
    EXPECT_THAT(refusal(name), HasSubstr(std::string(name) + ": unknown key; did you mean " + key))
        << name;
}

TEST(RunConfig, ResolvedYamlGivesTheSameConfig) {
  RunConfig config;
  config.model.path = "a \"quoted\" \\ path";
  config.optimizer.learning_rate = 0.1;
  config.data.validation = {"x, y", "z\n\t\x01"};
  const std::string yaml = to_yaml(config);
  EXPECT_EQ(to_yaml(load_run_config(write_yaml(yaml), {})), yaml);
}

TEST(RunConfig, RejectsBrokenYaml) {
  EXPECT_THAT(
      testing::message_of<InvalidArgument>([] { load_run_config(write_yaml("train: [1, {"), {}); }),
      HasSubstr("[config] 1 problem"));
}

TEST(RunConfig, TakesEmptySectionsAndRejectsWhatIsNoConfig) {
  EXPECT_EQ(load_run_config(write_yaml("optimizer:\ntrain:\n  steps: 3\n"), {}).train.steps, 3);
  EXPECT_EQ(load_run_config(write_yaml("# nothing\n"), {}).train.steps, 100);
  const auto message = [](const std::string& yaml) {
    return testing::message_of<InvalidArgument>([&] { load_run_config(write_yaml(yaml), {}); });
  };
  EXPECT_THAT(message("[1, 2]"), HasSubstr("expected a map of sections"));
  EXPECT_THAT(message("train:\n  steps: 3\n  steps: 4\n"), HasSubstr("train.steps: given twice"));
  EXPECT_THAT(message("train: {steps: {a: 1}}"),
              HasSubstr("train.steps: expected a value, got a map"));
  EXPECT_THAT(message("model: {replace: {segment: mlp, op: swiglu, with: my_swiglu}}"),
              HasSubstr("model.replace: expected a list, got one map; put it in [ ]"));
  EXPECT_THAT(message("sections: {a: {b: {c: 1}}}"), HasSubstr("sections: unknown key"));
  EXPECT_THAT(message("train: {steps: }"), HasSubstr("train.steps: expected a value"));
  EXPECT_THAT(message("train: {seed: 99999999999999999999}"), HasSubstr("train.seed: expected an"));
  EXPECT_THAT(message("optimizer: {epsilon: .nan}"), HasSubstr("optimizer.epsilon: expected"));
}

TEST(RunConfig, EveryKeyReadsItsOwnDefaultBack) {
  const RunConfig defaults;
  for (const ConfigKey& key : config_keys()) {
    const std::string yaml = key.show(defaults);
    const auto dot = key.name.find('.');
    const auto path = write_yaml(
        fmt::format("{}:\n  {}: {}\n", key.name.substr(0, dot), key.name.substr(dot + 1), yaml));
    EXPECT_EQ(key.show(load_run_config(path, {})), yaml) << key.name;
  }
}

TEST(RunConfig, TakesHowRanksShareAStep) {
  const RunConfig::Parallel parallel =
      load_run_config(write_yaml("parallel: {world: 8, data: auto, expert: 4, patience: 0.5}\n"),
                      {{"parallel.overlap", {"false"}}})
          .parallel;
  EXPECT_EQ(parallel.world, 8);
  EXPECT_EQ(parallel.data, RunConfig::Parallel::kRest);
  EXPECT_EQ(parallel.expert, 4);
  EXPECT_EQ(parallel.patience, 0.5);
  EXPECT_FALSE(parallel.overlap);
  EXPECT_EQ(parallel.optimizer, "sharded");
  EXPECT_THAT(testing::message_of<InvalidArgument>([] {
                load_run_config({}, {{"parallel.tensor", {"70000"}}});
              }),
              HasSubstr("parallel.tensor: expected an integer 1 to 32767, got 70000"));
}

std::filesystem::path write_strategy(const std::string& text) {
  static const anabatic::testing::TemporaryDirectory folder;
  const auto path = folder.path() / "strategy.json";
  std::ofstream(path) << text;
  return path;
}

TEST(RunConfig, TakesTheSizesOfAStrategyFile) {
  const auto file = write_strategy(
      R"({"data_parallel": 8, "model_parallel": 4, "pipeline_parallel": 2, "expert_parallel": 16,
          "context_parallel": 1, "tensor_parallel": 4, "tensor_parallel_mode": "row_split"})");
  const RunConfig config = load_run_config(write_yaml("parallel: {tensor: 4}\n"),
                                           {{"parallel.strategy", {file.string()}}});
  EXPECT_EQ(config.parallel.data, 8);
  EXPECT_EQ(config.parallel.tensor, 4);
  EXPECT_EQ(config.parallel.pipeline, 2);
  EXPECT_EQ(config.parallel.expert, 16);
  EXPECT_EQ(config.parallel.context, 1);
  // The sizes are keys from here on: the file may go.
  EXPECT_EQ(load_run_config(write_yaml(to_yaml(config)), {}).parallel.data, 8);
  EXPECT_THAT(to_yaml(config), HasSubstr("strategy: \"\"\n"));
}

TEST(RunConfig, NamesFileAndKeyOfABadStrategy) {
  const auto message = [](const std::string& text) {
    const std::string file = write_strategy(text).string();
    std::string text_of_error = testing::message_of<InvalidArgument>([&] {
      load_run_config({}, {{"parallel.strategy", {file}}, {"parallel.expert", {"2"}}});
    });
    if (const auto at = text_of_error.find(file); at != std::string::npos)
      text_of_error.replace(at, file.size(), "FILE");
    return text_of_error;
  };
  const std::string begin = "[config] 1 problem:\n  parallel.strategy: FILE: ";
  EXPECT_EQ(message(R"({"expert_parallel": 4})"),
            begin + "expert_parallel: expected 2 as parallel.expert is given, got 4");
  EXPECT_EQ(message(R"({"tensor_paralel": 4})"),
            begin + "tensor_paralel: unknown key; did you mean tensor_parallel?");
  EXPECT_EQ(message(R"({"tensor_parallel": 4, "model_parallel": 2})"),
            begin + "model_parallel: expected 4 as tensor_parallel has it, got 2");
  EXPECT_EQ(message(R"({"data_parallel": 2, "data_parallel": 2})"),
            begin + "data_parallel: given twice");
  EXPECT_EQ(message(R"({"tensor_parallel_mode": "column_split"})"),
            begin + R"(tensor_parallel_mode: expected "row_split", got "column_split")");
  for (const char* bad : {"0", "2.5", "\"4\"", "[4]", "1e30", "null"})
    EXPECT_THAT(message(fmt::format("{{\"data_parallel\": {}}}", bad)),
                HasSubstr(begin + "data_parallel: expected "))
        << bad;
  EXPECT_EQ(message("[1]"), begin + "expected a JSON object");
  EXPECT_THAT(message("{\"data_parallel\": "), HasSubstr(begin));
  EXPECT_THAT(testing::message_of<InvalidArgument>([] {
                load_run_config({}, {{"parallel.strategy", {"/no/such/file.json"}}});
              }),
              HasSubstr("/no/such/file.json"));
}

TEST(RunConfig, FusionsSwitchOptionalPassesAndNameTheKnownOnes) {
  const auto path = write_yaml("fusions: {fuse_head_loss: off, fuse_optimizer: on}\n");
  const RunConfig config = load_run_config(
      path, {{"fusions.fuse_norm_residual", {"off"}}, {"compiler.disable_passes", {"dead_code"}}});
  EXPECT_EQ(config.fusions.off, (std::set<std::string>{"fuse_head_loss", "fuse_norm_residual"}));
  EXPECT_EQ(config.compiler.disable_passes, std::vector<std::string>{"dead_code"});
  EXPECT_TRUE(load_run_config(path, {{"fusions.fuse_head_loss", {"on"}}}).fusions.off.empty());
  EXPECT_EQ(load_run_config(write_yaml(to_yaml(config)), {}).fusions.off, config.fusions.off);

  const auto message = [](const std::string& yaml) {
    return testing::message_of<InvalidArgument>([&] { load_run_config(write_yaml(yaml), {}); });
  };
  EXPECT_THAT(message("fusions: {fuse_hed_loss: off}"),
              ::testing::AllOf(HasSubstr("fusions.fuse_hed_loss: unknown pass; expected one of"),
                               HasSubstr("fuse_head_loss, ")));
  EXPECT_THAT(message("fusions: {differentiate: off}"),
              HasSubstr("fusions.differentiate: unknown pass"));
  EXPECT_THAT(message("fusions: {fuse_optimizer: sometimes}"),
              HasSubstr("fusions.fuse_optimizer: expected on or off, got 'sometimes'"));
}

TEST(RunConfig, PromisesTheKeysOfTheDocumentation) {
  std::set<std::string> names;
  for (const ConfigKey& key : config_keys()) names.insert(key.name);
  for (const char* name : {"model.path",
                           "model.init",
                           "data.train",
                           "data.validation",
                           "data.sequence_length",
                           "data.packing",
                           "data.shuffle",
                           "data.add_bos",
                           "data.append_eos",
                           "train.steps",
                           "train.micro_batch_size",
                           "train.gradient_accumulation_steps",
                           "train.precision",
                           "train.seed",
                           "train.output",
                           "train.resume",
                           "train.save_every",
                           "train.validate_every",
                           "train.keep_last",
                           "train.save_dtype",
                           "optimizer.name",
                           "optimizer.learning_rate",
                           "optimizer.betas",
                           "optimizer.epsilon",
                           "optimizer.weight_decay",
                           "optimizer.clip_grad_norm",
                           "optimizer.schedule",
                           "optimizer.warmup_steps",
                           "optimizer.min_learning_rate",
                           "device.kind",
                           "device.threads",
                           "generate.max_new_tokens",
                           "generate.temperature",
                           "generate.top_k",
                           "generate.top_p",
                           "generate.seed"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(RunConfig, TakesAKindAndAWeightOfTheBalanceLoss) {
  EXPECT_EQ(RunConfig{}.train.balance_loss, "layer");
  const auto load = [](const Overrides& overrides) { return load_run_config("", overrides); };
  for (const char* kind : {"layer", "sequence", "all_layers", "none"})
    EXPECT_EQ(load({{"train.balance_loss", {kind}}}).train.balance_loss, kind);
  EXPECT_THROW(load({{"train.balance_loss", {"layers"}}}), InvalidArgument);
  EXPECT_EQ(load({{"train.balance_coef", {"auto"}}}).train.balance_coef,
            RunConfig::Train::kCoefOfModel);
  EXPECT_EQ(load({{"train.balance_coef", {"0.25"}}}).train.balance_coef, 0.25);
  for (const char* wrong : {"-1", "nan", "much", ""})
    EXPECT_THROW(load({{"train.balance_coef", {wrong}}}), InvalidArgument) << wrong;
  // A weight of nothing.
  EXPECT_THROW(load({{"train.balance_loss", {"none"}}, {"train.balance_coef", {"0.25"}}}),
               InvalidArgument);
  EXPECT_NO_THROW(load({{"train.balance_loss", {"none"}}, {"train.balance_coef", {"0"}}}));
}

TEST(Schedule, WarmsUpThenFallsToTheMinimum) {
  RunConfig::Optimizer optimizer{
      .learning_rate = 1.0, .schedule = "cosine", .warmup_steps = 4, .min_learning_rate = 0.25};
  EXPECT_EQ(learning_rate(optimizer, 1, 12), 0.25);
  EXPECT_EQ(learning_rate(optimizer, 4, 12), 1.0);
  EXPECT_EQ(learning_rate(optimizer, 12, 12), 0.25);
  optimizer.schedule = "linear";
  EXPECT_EQ(learning_rate(optimizer, 8, 12), 0.625);
  optimizer.schedule = "constant";
  EXPECT_EQ(learning_rate(optimizer, 11, 12), 1.0);
  optimizer.warmup_steps = 0;
  EXPECT_EQ(learning_rate(optimizer, 1, 12), 1.0);
}

TEST(Sampler, IsGreedyAtTemperatureZero) {
  Sampler sampler({.temperature = 0.0}, 4);
  EXPECT_EQ(sampler.next(std::vector<float>{0.0f, 2.0f, 2.0f, 1.0f}, 0), 1);
}

TEST(Sampler, DrawsOnlyAmongTheTopKAndTopP) {
  const std::vector<float> logits{0.0f, 3.0f, 2.9f, -1.0f};
  Sampler top_k({.temperature = 1.0, .top_k = 2}, 4);
  Sampler top_p({.temperature = 1.0, .top_p = 0.4}, 4);
  bool saw_second = false;
  for (std::int64_t position = 0; position < 200; ++position) {
    const std::int32_t token = top_k.next(logits, position);
    EXPECT_TRUE(token == 1 || token == 2);
    saw_second = saw_second || token == 2;
    EXPECT_EQ(top_k.next(logits, position), token);
    EXPECT_EQ(top_p.next(logits, position), 1);
  }
  EXPECT_TRUE(saw_second);
}

}  // namespace
}  // namespace anabatic::train
