// SPDX-License-Identifier: Apache-2.0
// anabatic/config.h against the table of keys: neither has or does what the other has not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "anabatic/plan.h"
#include "anabatic/session.h"
#include "support/error_message.h"
#include "support/tiny_run.h"
#include "train/api/config_values.h"
#include "train/run_config.h"

namespace anabatic::train {
namespace {

using ::testing::HasSubstr;

RunConfig run_of(const Config& config) {
  const Settings settings = to_settings(config);
  return load_run_config({}, {settings.begin(), settings.end()});
}

const ConfigKey& key_of(const std::string& name) {
  for (const ConfigKey& key : config_keys())
    if (key.name == name) return key;
  throw InvalidArgument("expected a key, got " + name);
}

TEST(ApiConfig, HasAFieldOfEveryKeyWithItsDefault) {
  const Settings all = all_settings({});
  const RunConfig defaults;
  EXPECT_EQ(all.size(), config_keys().size());
  for (const ConfigKey& key : config_keys()) {
    ASSERT_TRUE(all.contains(key.name)) << key.name;
    RunConfig config;
    key.set(config, all.at(key.name));
    EXPECT_EQ(key.show(config), key.show(defaults)) << key.name;
  }
  EXPECT_TRUE(to_settings({}).empty());
}

TEST(ApiConfig, HandsChangedValuesOfEveryTypeToTheRun) {
  Config config;
  config.data.train = {"a.txt", "b c.txt"};
  config.data.shuffle = false;
  config.train.steps = 7;
  config.train.output = "run";
  config.train.log_every = 3;
  config.train.balance_coef = 0.1;
  config.train.balance_loss = Config::Train::BalanceLoss::kAllLayers;
  config.optimizer.learning_rate = 0.1 + 0.2;
  config.optimizer.betas = {0.8, 0.98};
  config.memory.budget = std::int64_t{6} << 30;
  config.fusions.fuse_rope = false;
  config.precision.int8_fallback = std::nullopt;
  config.precision.keep = {{"attention", "fp32"}, {"layers.0.experts.down", "bf16"}};
  config.precision.critical = {"head", "experts.down"};
  config.quantization.enable = true;
  config.quantization.units = {"experts.down", "mlp"};
  config.quantization.format = Config::Quantization::Format::kQ40;
  config.precision.loss_scale = 512.0;
  config.dropout.residual = 0.1;
  config.sparsity.weights = {"{units: [experts.down], pattern: block32, density: 0.25}"};
  config.attention.blocks_size = 64;
  config.attention.blocks_local = 8;
  EXPECT_EQ(to_settings(config).size(), 22u);
  const RunConfig run = run_of(config);
  EXPECT_EQ(run.data.train, config.data.train);
  EXPECT_FALSE(run.data.shuffle);
  EXPECT_EQ(run.train.steps, 7);
  EXPECT_EQ(run.train.output, "run");
  EXPECT_EQ(run.train.log_every, 3);
  EXPECT_EQ(run.train.balance_coef, 0.1);
  EXPECT_EQ(run.train.balance_loss, "all_layers");
  EXPECT_EQ(run.optimizer.learning_rate, 0.1 + 0.2);
  EXPECT_EQ(run.optimizer.betas, config.optimizer.betas);
  EXPECT_EQ(run.memory.budget, std::int64_t{6} << 30);
  EXPECT_EQ(run.precision.int8.fallback, 128);
  EXPECT_EQ(run.precision.loss_scale, 512);
  EXPECT_EQ(run.dropout.residual, 0.1);
  EXPECT_EQ(run.sparsity.weights.at(0).density, 0.25);
  EXPECT_EQ(run.dropout.embedding, RunConfig::kUsualDropout);
  EXPECT_EQ(run.precision.keep, config.precision.keep);
  EXPECT_EQ(run.precision.critical, config.precision.critical);
  EXPECT_TRUE(run.quantization.enable);
  EXPECT_EQ(run.quantization.units, config.quantization.units);
  EXPECT_EQ(run.quantization.format, "q4_0");
  EXPECT_EQ(run.attention.blocks.size, 64);
  EXPECT_EQ(run.attention.blocks.local, 8);
  EXPECT_EQ(run.fusions.off, std::set<std::string>{"fuse_rope"});
  config.memory.budget = Config::Memory::BudgetWord::kNone;
  EXPECT_EQ(run_of(config).memory.budget, 0);
  config.precision.loss_scale = Config::Precision::LossScaleWord::kDynamic;
  EXPECT_EQ(run_of(config).precision.loss_scale, RunConfig::Precision::kDynamic);
  config.attention.blocks_local = 0;
  config.attention.blocks_size = Config::Attention::BlocksSizeWord::kOff;
  EXPECT_EQ(run_of(config).attention.blocks.size, RunConfig::Attention::Blocks::kOff);
}

// Sets the field to each of its enumerators, and to the value after the last one.
template <class Field>
void expect_words(const std::string& name, Field&& field) {
  const ConfigKey& key = key_of(name);
  std::string words;
  Config config;
  auto& value = field(config);
  using Enum = std::remove_reference_t<decltype(value)>;
  for (int place = 0;; ++place) {
    value = static_cast<Enum>(place);
    const std::string word = all_settings(config).at(name).at(0);
    if (word == std::to_string(place)) {
      EXPECT_THAT(testing::message_of<InvalidArgument>([&] { run_of(config); }),
                  HasSubstr(name + ": expected "));
      break;
    }
    words += (place > 0 ? " | " : "") + word;
    EXPECT_EQ(key.show(run_of(config)), word) << name;
  }
  EXPECT_EQ(words, key.allowed) << name;
}

#define EXPECT_WORDS(section, name) \
  expect_words(                     \
      #section "." #name, [](Config & config) -> auto& { return config.section.name; })

TEST(ApiConfig, HasAnEnumeratorForEveryWord) {
  EXPECT_WORDS(model, init);
  EXPECT_WORDS(data, packing);
  EXPECT_WORDS(data, add_bos);
  EXPECT_WORDS(data, append_eos);
  EXPECT_WORDS(data, format);
  EXPECT_WORDS(data, loss_on);
  EXPECT_WORDS(data, truncation);
  EXPECT_WORDS(train, objective);
  EXPECT_WORDS(train, check_leak);
  EXPECT_WORDS(train, precision);
  EXPECT_WORDS(train, resume);
  EXPECT_WORDS(train, save_dtype);
  EXPECT_WORDS(train, balance_loss);
  EXPECT_WORDS(optimizer, name);
  EXPECT_WORDS(optimizer, schedule);
  EXPECT_WORDS(optimizer, state_precision);
  EXPECT_WORDS(optimizer, update);
  EXPECT_WORDS(memory, compress);
  EXPECT_WORDS(precision, validation);
  EXPECT_WORDS(memory, activations);
  EXPECT_WORDS(memory, optimizer_state);
  EXPECT_WORDS(memory, masters);
  EXPECT_WORDS(memory, parameters);
  EXPECT_WORDS(parallel, optimizer);
  EXPECT_WORDS(parallel, reduction);
  EXPECT_WORDS(parallel, exchange);
  expect_words(
      "lora.base", [](Config & config) -> auto& {
        config.lora.targets = {"all"};  // without an adapter no weights are frozen
        return config.lora.base;
      });
#define EXPECT_GRID_WORDS(name, usual)                                    \
  expect_words(                                                           \
      "quantization." #name, [](Config & config) -> auto& {               \
        config.quantization.enable = true;                                \
        config.quantization.format = Config::Quantization::Format::usual; \
        return config.quantization.name;                                  \
      })
  EXPECT_GRID_WORDS(format, kAuto);
  EXPECT_GRID_WORDS(group, kInt4Group);
  EXPECT_GRID_WORDS(bit_num, kAuto);
  EXPECT_GRID_WORDS(per_channel, kAuto);
  EXPECT_GRID_WORDS(activations, kAuto);
  EXPECT_WORDS(dpo, loss);
  EXPECT_WORDS(device, kind);
  EXPECT_EQ(std::count_if(config_keys().begin(), config_keys().end(),
                          [](const ConfigKey& key) { return key.type == "word"; }),
            34);
}

#undef EXPECT_WORDS

TEST(ApiConfig, NamesEnumeratorsAfterTheirWords) {
  Config config;
  config.model.init = Config::Model::Init::kRandom;
  config.data.add_bos = Config::Data::AddBos::kFalse;
  config.train.save_dtype = Config::Train::SaveDtype::kFp32;
  config.optimizer.update = Config::Optimizer::Update::kInBackward;
  EXPECT_EQ(to_settings(config), (Settings{{"model.init", {"random"}},
                                           {"data.add_bos", {"false"}},
                                           {"train.save_dtype", {"fp32"}},
                                           {"optimizer.update", {"in_backward"}}}));
}

TEST(ApiConfig, IsRefusedByTheNamesOfKeysWithWrongValues) {
  Config config;
  config.train.steps = -5;
  config.optimizer.learning_rate = std::numeric_limits<double>::quiet_NaN();
  config.optimizer.betas = {0.9};
  config.memory.budget = -1;
  config.train.log_every = 0;
  const auto expect_all = [](const std::string& message) {
    EXPECT_THAT(message, HasSubstr("[config] 5 problems:"));
    EXPECT_THAT(message, HasSubstr("train.steps: expected an integer >= 0, got -5"));
    EXPECT_THAT(message,
                HasSubstr("optimizer.learning_rate: expected a number in [0, 1000000], got nan"));
    EXPECT_THAT(message, HasSubstr("optimizer.betas: expected two numbers, got 1 values"));
    EXPECT_THAT(message, HasSubstr("memory.budget: expected bytes such as 6GiB"));
    EXPECT_THAT(message, HasSubstr("train.log_every: expected an integer >= 1, got 0 (or auto)"));
  };
  expect_all(testing::message_of<InvalidArgument>([&] { Engine engine(config); }));
  expect_all(testing::message_of<InvalidArgument>([&] { Session session(config); }));
  expect_all(testing::message_of<InvalidArgument>([&] { plan_step(config); }));
}

TEST(ApiConfig, PlansAsTheSameSettingsDo) {
  const anabatic::testing::TemporaryDirectory folder;
  Config config;
  config.model.path = anabatic::testing::write_tiny_config(folder.path());
  config.data.sequence_length = 16;
  config.train.micro_batch_size = 2;
  config.memory.compress = Config::Memory::Compress::kInt8;
  config.memory.recompute = {"experts"};
  const Settings settings{{"model.path", {config.model.path}},
                          {"data.sequence_length", {"16"}},
                          {"train.micro_batch_size", {"2"}},
                          {"memory.compress", {"int8"}},
                          {"memory.recompute", {"experts"}}};
  const PlanOutcome typed = plan_step(config), text = plan_step(settings);
  ASSERT_TRUE(std::holds_alternative<PlannedStep>(typed));
  ASSERT_TRUE(std::holds_alternative<PlannedStep>(text));
  const auto& got = std::get<PlannedStep>(typed);
  const auto& want = std::get<PlannedStep>(text);
  EXPECT_FALSE(got.choices.empty());
  EXPECT_EQ(got.choices.size(), want.choices.size());
  EXPECT_EQ(got.summary.step_seconds, want.summary.step_seconds);
}

}  // namespace
}  // namespace anabatic::train
