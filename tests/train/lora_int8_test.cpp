// SPDX-License-Identifier: Apache-2.0
// Adapters over weights with int8 products: frozen weights alone have them, a run begins with the
// loss of one that trains all weights, and bits are equal however it is planned and resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "passes/precision/product_formats.h"
#include "support/plan_changes.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "support/tolerance.h"
#include "support/trained_run.h"
#include "train/convert/convert.h"
#include "train/evaluate.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::checkpoint_bytes;
using anabatic::testing::losses_of;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::trained_bytes;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kExperts = R"("hidden_size": 64, "intermediate_size": 96)";
constexpr const char* kDense = R"("model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64, "intermediate_size": 160, "num_local_experts": 0,
    "output_router_logits": false, "tie_word_embeddings": true)";

// Matrices of the adapter are wide enough for int8.
RunConfig int8_run(const fs::path& folder, const std::string& extra = kExperts) {
  RunConfig run = anabatic::testing::tiny_run(folder, extra);
  run.train.precision = "int8";
  run.train.steps = 4;
  run.data.sequence_length = 32;
  run.lora.targets = {"all"};
  run.lora.rank = 32;
  run.optimizer.learning_rate = 1e-2;
  return run;
}

std::string formats_of(const Trainer& trainer) {
  return passes::to_string(
      passes::product_formats(trainer.compiled().graph, spec::Precision::kInt8, {}));
}

std::map<spec::ProductRole, int> int8_products(const ir::Graph& graph) {
  std::map<spec::ProductRole, int> count;
  for (const ir::Node& node : graph.nodes) {
    const spec::ProductForm* form = ir::product_form(node);
    if (form == nullptr) continue;
    if (form->role == spec::ProductRole::kWeightGradient) {
      count[form->role] += node.attributes.contains("fallback") ? 1 : 0;
      continue;
    }
    count[form->role] +=
        std::ranges::any_of(
            node.inputs, [&](ir::ValueId input) { return is_int8_panels(graph.value(input).type); })
            ? 1
            : 0;
  }
  return count;
}

TEST(LoraInt8, MultipliesFrozenWeightsAlone) {
  using enum spec::ProductRole;
  const TemporaryDirectory folder;
  const Trainer trainer(int8_run(folder.path()));
  const ir::Graph& graph = trainer.compiled().graph;
  auto count = int8_products(graph);
  EXPECT_GE(count[kForward], 2 * 3);
  EXPECT_GE(count[kInputGradient], 2 * 3);
  EXPECT_EQ(count[kWeightGradient], 0);
  const bool has_head = anabatic::testing::has_pass("fuse_head_loss");
  EXPECT_EQ(std::ranges::any_of(graph.nodes,
                                [](const ir::Node& node) {
                                  return node.op->name == "head_loss_with_input_gradient" &&
                                         node.attributes.contains("fallback");
                                }),
            has_head);
  const std::string formats = formats_of(trainer);
  const std::string in_int8 = formats.substr(0, formats.find('\n'));
  for (const char* unit : {"layers.N.attention.o", "layers.N.experts.down"})
    EXPECT_THAT(in_int8, HasSubstr(unit));
  EXPECT_EQ(in_int8.find("head") != std::string::npos, has_head);
  EXPECT_THAT(in_int8, Not(HasSubstr("lora")));
  EXPECT_THAT(formats, HasSubstr("those of the adapter"));
  // In 16 bits and their int8 packings, whatever passes are off.
  for (const ir::State& state : graph.states) {
    if (state.kind() != ir::StateKind::kParameter || state.is_trainable) continue;
    const bool has_int8 = std::ranges::any_of(graph.states, [&](const ir::State& of) {
      return of.owner == state.name && is_int8_panels(graph.value(of.before).type);
    });
    if (has_int8) {
      EXPECT_EQ(graph.value(state.before).type.dtype, DType::kBFloat16) << text(state.name);
    }
  }
}

// B is 0 at first: what is computed is what a run computes that trains all weights, where no fused
// op leaves out a rounding.
TEST(LoraInt8, BeginsWithTheLossOfARunOfAllWeights) {
  const TemporaryDirectory folder;
  for (const char* extra : {kExperts, kDense}) {
    const TemporaryDirectory own;
    RunConfig first = int8_run(own.path(), extra);
    first.lora = {};
    first.train.precision = "bf16";
    first.train.output = own.path() / "first";
    const std::string trained = Trainer(first).train().checkpoint;
    RunConfig whole = int8_run(own.path(), extra), adapter = whole;
    convert(trained, own.path() / "base", {.dtype = DType::kBFloat16, .compares_logits = false});
    for (RunConfig* run : {&whole, &adapter}) {
      run->model.path = own.path() / "base";
      run->model.init = "pretrained";
      run->compiler.disable_passes.insert(run->compiler.disable_passes.end(),
                                          {"fuse_activation", "move_router_weight"});
    }
    whole.lora = {};
    whole.train.output += "_whole";
    Trainer(whole).train();
    Trainer(adapter).train();
    const std::vector<double> of_whole = losses_of(whole), of_adapter = losses_of(adapter);
    EXPECT_EQ(of_adapter.front(), of_whole.front()) << extra;
    EXPECT_NE(of_adapter.back(), of_whole.back()) << extra;
  }
}

TEST(LoraInt8, LearnsNextToBf16AndValidatesAsTheSavedAdapter) {
  for (const char* extra : {kExperts, kDense}) {
    SCOPED_TRACE(extra);
    const TemporaryDirectory folder;
    RunConfig run = int8_run(folder.path(), extra);
    run.train.steps = 12;
    run.data.validation = {
        anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
    const TrainResult result = Trainer(run).train();
    EXPECT_LT(result.after->loss, result.before->loss);
    RunConfig in_bf16 = run;
    in_bf16.train.precision = "bf16";
    in_bf16.train.output += "_bf16";
    const TrainResult of_bf16 = Trainer(in_bf16).train();
    EXPECT_EQ(result.before->loss, of_bf16.before->loss);  // validations are in bf16
    const std::vector<double> got = losses_of(run), want = losses_of(in_bf16);
    EXPECT_NE(got, want);
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_LE(std::abs(got[i] - want[i]),
                anabatic::testing::loss_tolerance(want[i], DType::kBFloat16))
          << "step " << i;
  }
}

TEST(LoraInt8, HasEqualBitsHoweverItIsPlannedAndResumed) {
  const TemporaryDirectory folder;
  const RunConfig base = int8_run(folder.path());
  const std::string want = trained_bytes(base);
  int number = 0;
  for (const anabatic::testing::PlanChange& change : anabatic::testing::plan_changes()) {
    RunConfig run = base;
    run.train.output = folder.path() / std::to_string(number++);
    change.apply(run);
    if (run.memory.parameters == "disk") continue;  // refused with adapters
    EXPECT_TRUE(trained_bytes(run) == want) << change.name;
  }
  RunConfig broken = base;
  broken.train.output = folder.path() / "broken";
  broken.train.save_every = 2;
  broken.train.keep_last = 0;
  Trainer(broken).train();
  anabatic::testing::go_back_to(broken.train.output, 2);
  EXPECT_TRUE(checkpoint_bytes(Trainer(broken).train().checkpoint) == want);
}

TEST(LoraInt8, LeavesWeightsIn4BitsTheirOwnFormat) {
  const TemporaryDirectory folder;
  RunConfig run = int8_run(folder.path(), anabatic::testing::kTinySinks +
                                              R"(, "hidden_size": 96, "intermediate_size": 64,
                                    "num_attention_heads": 4, "num_key_value_heads": 2)");
  run.lora.base = "mxfp4";
  Trainer trainer(run);
  const std::string formats = formats_of(trainer);
  EXPECT_THAT(formats.substr(0, formats.find('\n')), HasSubstr("layers.N.attention.o"));
  EXPECT_THAT(formats, HasSubstr("layers.N.experts.down (lora.base keeps it in mxfp4)"));
  trainer.train();
  for (const double loss : losses_of(run)) EXPECT_TRUE(std::isfinite(loss));
}

}  // namespace
}  // namespace anabatic::train
