// SPDX-License-Identifier: Apache-2.0
// Quantization-aware training with activations in int8: what reads them, equal bits however it is
// planned and resumed, and what files say of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "support/error_message.h"
#include "support/plan_changes.h"
#include "support/tiny_run.h"
#include "support/trained_run.h"
#include "train/convert/convert.h"
#include "train/convert/stored_model.h"
#include "train/convert/trained_grid.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

using anabatic::testing::losses_of;
using anabatic::testing::message_of;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::trained_bytes;
using ::testing::HasSubstr;

RunConfig rounding_run(const std::filesystem::path& folder) {
  RunConfig run =
      anabatic::testing::tiny_run(folder, R"("hidden_size": 64, "intermediate_size": 96)");
  run.train.precision = "bf16";
  run.train.steps = 4;
  run.data.sequence_length = 32;
  run.quantization.enable = true;
  run.quantization.units = {"experts", "attention"};
  run.quantization.activations = "int8_token";
  return run;
}

TEST(QuantizedActivations, AreReadByTheProductsOfTheUnits) {
  const TemporaryDirectory folder;
  RunConfig run = rounding_run(folder.path());
  Trainer trainer(run);
  int count = 0;
  for (const ir::Node& node : trainer.compiled().graph.nodes) {
    count += node.op->name == "fake_quantize_tokens" ? 1 : 0;
    EXPECT_EQ(node.op->name.find("fake_quantize_tokens_"), node.op->name.npos);
  }
  EXPECT_EQ(count, 2 * 4);  // of q, k and v; o; gate and up; down
  EXPECT_THAT(trainer.session().grid_coverage(), HasSubstr("read int8 activations"));
  trainer.train();
  const std::vector<double> rounded = losses_of(run);
  run.quantization.activations = "off";
  run.train.output += "_off";
  Trainer(run).train();
  EXPECT_NE(losses_of(run), rounded);
}

TEST(QuantizedActivations, HaveEqualBitsHoweverTheyArePlannedAndResumed) {
  const TemporaryDirectory folder;
  RunConfig base = rounding_run(folder.path());
  base.train.precision = "int8";
  base.train.steps = 2;
  base.train.save_every = 1;
  base.train.keep_last = 0;
  const std::string want = trained_bytes(base);
  int number = 0;
  for (const anabatic::testing::PlanChange& change : anabatic::testing::plan_changes()) {
    RunConfig run = base;
    run.train.output = folder.path() / std::to_string(number++);
    change.apply(run);
    EXPECT_TRUE(trained_bytes(run) == want) << change.name;
  }
  anabatic::testing::go_back_to(base.train.output, 1);
  EXPECT_TRUE(trained_bytes(base) == want);
}

TEST(QuantizedActivations, GoWithAnAdapter) {
  const TemporaryDirectory folder;
  RunConfig run = rounding_run(folder.path());
  run.lora.targets = {"attention", "experts"};
  run.lora.rank = 4;
  const Trainer trainer(run);
  const ir::Graph& graph = trainer.compiled().graph;
  EXPECT_EQ(std::ranges::count_if(
                graph.nodes,
                [](const ir::Node& node) { return node.op->name == "fake_quantize_tokens"; }),
            2 * 4);
}

TEST(QuantizedActivations, AreSaidByTheFilesOfCompressedTensors) {
  const TemporaryDirectory folder;
  RunConfig run = rounding_run(folder.path());
  run.quantization.format = "int4_group";
  const std::string checkpoint = Trainer(run).train().checkpoint;
  ASSERT_TRUE(find_trained_grid(checkpoint)->rounds_activations);
  const std::filesystem::path packed = folder.path() / "packed";
  convert(checkpoint, packed, {.packs_weights = true});
  const Json config = parse_json(read_file(packed / "config.json", 1 << 20));
  const Json activations =
      config.at("quantization_config").at("config_groups").at("group_0").at("input_activations");
  EXPECT_EQ(activations,
            parse_json(R"({"num_bits": 8, "type": "int", "symmetric": true, "dynamic": true,
                           "strategy": "token"})"));
  std::string warnings;
  {
    const LogScope scope([&](Severity, const std::string& text) { warnings += text + "\n"; });
    const StoredModel model(packed);
  }
  EXPECT_THAT(warnings, HasSubstr("input_activations: activations are computed as they are"));
  warnings.clear();
  run.quantization.format = "q8_0";
  run.train.output += "_gguf";
  const std::string other = Trainer(run).train().checkpoint;
  {
    const LogScope scope([&](Severity, const std::string& text) { warnings += text + "\n"; });
    convert(other, folder.path() / "model.gguf", {.writes_gguf = true, .compares_logits = false});
  }
  EXPECT_THAT(warnings, HasSubstr("trained with quantization.activations: int8_token, for which "
                                  "the files have no field"));
}

TEST(QuantizedActivations, AreRefusedByTheNamesOfKeys) {
  const auto problems = [](Overrides overrides) {
    return message_of<InvalidArgument>([&] { load_run_config("", overrides); });
  };
  EXPECT_THAT(problems({{"quantization.enable", {"true"}},
                        {"quantization.activations", {"int8_token"}},
                        {"quantization.quant_delay", {"2"}}}),
              HasSubstr("quantization.quant_delay: expected 0 with quantization.activations"));
  EXPECT_THAT(
      problems({{"quantization.enable", {"true"}}, {"quantization.activations", {"int4_token"}}}),
      HasSubstr("quantization.activations: expected one of [off, int8_token], got"));
  EXPECT_THAT(problems({{"quantization.activations", {"int8_token"}}}),
              HasSubstr("quantization.enable: expected true"));
}

}  // namespace
}  // namespace anabatic::train
