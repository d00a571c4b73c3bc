// SPDX-License-Identifier: Apache-2.0
// Runs that train an adapter: what they learn, what they leave alone, and what they save.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/data/fingerprint.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "model/lora/gguf_adapter.h"
#include "model/lora/merged_weights.h"
#include "support/error_message.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "support/tolerance.h"
#include "train/convert/convert.h"
#include "train/evaluate.h"
#include "train/lora/run_adapter.h"
#include "train/trainer.h"
#include "unit/model/model_files.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::checkpoint_bytes;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using ::testing::AllOf;
using ::testing::HasSubstr;

RunConfig adapter_run(const fs::path& folder, const std::string& extra = "") {
  RunConfig run = tiny_run(folder, extra);
  run.lora.targets = {"attention", "experts"};
  run.lora.rank = 4;
  return run;
}

// A model that was trained a little, as the weights under an adapter.
fs::path trained_base(const fs::path& folder, std::int64_t steps = 2) {
  RunConfig run = tiny_run(folder);
  run.train.steps = steps;
  run.train.output = folder / fmt::format("base-{}", steps);
  return Trainer(run).train().checkpoint;
}

RunConfig run_on(const fs::path& base, const fs::path& folder) {
  RunConfig run = adapter_run(folder);
  run.model.path = base;
  run.model.init = "pretrained";
  return run;
}

bool is_adapter(Name state) { return text(state).find(".lora_") != std::string_view::npos; }

// A hash of the bits of each parameter.
std::map<std::string, std::string> hashes(ModelSession& session) {
  std::map<std::string, std::string> result;
  for (const Name name : session.store().names()) {
    if (session.store().part(name).kind() != spec::StateKind::kParameter) continue;
    std::string bytes;
    for_state_bytes(session.store(), name, [&](std::span<const std::byte> block) {
      bytes.append(reinterpret_cast<const char*>(block.data()), block.size());
    });
    result[std::string(text(name))] = io::content_hash(std::string_view(bytes));
  }
  return result;
}

// Losses of one function that programs compute in other orders.
bool are_near(double a, double b) {
  return std::abs(a - b) <= anabatic::testing::loss_tolerance(b, DType::kFloat32);
}

std::string failure(const RunConfig& run) {
  return testing::message_of([&] { Trainer(run).train(); });
}

TEST(Lora, LearnsAndLeavesTheWeightsAlone) {
  for (const char* precision : {"fp32", "bf16"})
    for (const bool in_backward : {false, true}) {
      const TemporaryDirectory folder;
      RunConfig run = adapter_run(folder.path());
      run.lora.targets = {"all", "router", "embedding", "head"};
      run.train.precision = precision;
      run.train.steps = 40;
      run.train.gradient_accumulation_steps = 2;
      run.optimizer.update = in_backward ? "in_backward" : "after_backward";
      run.optimizer.state_precision = in_backward ? "int8" : "fp32";
      run.data.validation = {
          anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
      Trainer trainer(run);
      const auto before = hashes(trainer.session());
      const TrainResult result = trainer.train();
      const auto after = hashes(trainer.session());
      ASSERT_TRUE(result.before && result.after);
      EXPECT_LT(result.after->loss, result.before->loss - 0.2)
          << precision << " " << run.optimizer.update;
      for (const auto& [name, hash] : before)
        EXPECT_EQ(after.at(name) == hash, !is_adapter(intern(name))) << name;
    }
}

TEST(Lora, FrozenWeightsHaveNoGradientsMomentsOrLowerBits) {
  const TemporaryDirectory folder;
  RunConfig run = adapter_run(folder.path());
  run.train.precision = "bf16";
  Trainer trainer(run);
  const ir::Graph& graph = trainer.compiled().graph;
  std::int64_t num_frozen = 0;
  for (const ir::State& state : graph.states) {
    using enum ir::StateRole;
    const bool is_of_training = state.role == kGradient || state.role == kFirstMoment ||
                                state.role == kSecondMoment || state.role == kLower ||
                                state.role == kSquares;
    if (is_of_training) {
      EXPECT_TRUE(is_adapter(state.owner)) << text(state.name);
    }
    if (state.kind() != ir::StateKind::kParameter || is_adapter(state.name)) continue;
    ++num_frozen;
    EXPECT_FALSE(state.is_trainable) << text(state.name);
    EXPECT_EQ(state.after, state.before) << text(state.name);
    const TensorType& type = graph.value(state.before).type;
    // In bf16 a matrix is what products read, once.
    if (anabatic::testing::has_pass("split_parameters") && type.ndim() > 1) {
      EXPECT_EQ(type.dtype, DType::kBFloat16) << text(state.name);
    }
  }
  EXPECT_GT(num_frozen, 10);
  for (const ir::Node& node : graph.nodes)
    if (const spec::ProductForm* form = ir::product_form(node);
        form != nullptr && form->role == spec::ProductRole::kWeightGradient)
      for (const ir::ValueId output : node.outputs)
        if (graph.value(output).type.ndim() > 1) {
          const auto& shape = graph.value(output).type.shape;
          EXPECT_TRUE(shape.back() == 4 || *(shape.end() - 2) == 4)
              << to_string(graph.value(output).type);
        }
}

// An embedding that is the head is read as rows and in panels.
TEST(Lora, ATiedEmbeddingStaysFrozen) {
  for (const char* precision : {"fp32", "bf16"}) {
    const TemporaryDirectory folder;
    RunConfig run = adapter_run(folder.path(), "\"tie_word_embeddings\": true");
    run.train.precision = precision;
    run.train.steps = 40;
    run.data.validation = {
        anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
    Trainer trainer(run);
    const auto before = hashes(trainer.session());
    const TrainResult result = trainer.train();
    EXPECT_EQ(hashes(trainer.session()).at("embedding.weight"), before.at("embedding.weight"));
    EXPECT_LT(result.after->loss, result.before->loss - 0.1) << precision;
  }
}

// Each side of such an embedding learns by itself.
TEST(Lora, AnEmbeddingAndAHeadThatAreOneTensorLearnApart) {
  for (const char* target : {"embedding", "head"})
    for (const char* precision : {"fp32", "bf16"}) {
      const TemporaryDirectory folder;
      RunConfig run = adapter_run(folder.path(), "\"tie_word_embeddings\": true");
      run.lora.targets = {target};
      run.train.precision = precision;
      run.train.steps = 40;
      run.data.validation = {
          anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
      Trainer trainer(run);
      const auto before = hashes(trainer.session());
      const TrainResult result = trainer.train();
      const auto after = hashes(trainer.session());
      EXPECT_LT(result.after->loss, result.before->loss - 0.1) << target << " " << precision;
      for (const auto& [name, hash] : before)
        EXPECT_EQ(after.at(name) == hash, !is_adapter(intern(name))) << name;
    }
}

TEST(Lora, AnAdapterOfOneSideOfATiedTensorIsNotMerged) {
  const TemporaryDirectory folder;
  RunConfig run = adapter_run(folder.path(), "\"tie_word_embeddings\": true");
  run.lora.targets.clear();
  run.train.output = folder.path() / "base";
  const std::string base = Trainer(run).train().checkpoint;
  run.model.path = base;
  run.model.init = "pretrained";
  run.lora.targets = {"embedding"};
  run.train.output = folder.path() / "adapter";
  const std::string adapter = Trainer(run).train().checkpoint;
  EXPECT_THAT(
      testing::message_of([&] { convert(base, folder.path() / "merged", {.adapter = adapter}); }),
      AllOf(HasSubstr("the embedding and the head of this mixtral are one tensor"),
            HasSubstr("use it next to the model")));
  EXPECT_FALSE(fs::exists(folder.path() / "merged"));
}

TEST(Lora, ResumesBitForBit) {
  for (const char* precision : {"fp32", "bf16"}) {
    const TemporaryDirectory whole_folder, broken_folder;
    RunConfig whole = adapter_run(whole_folder.path()), broken = adapter_run(broken_folder.path());
    whole.train.precision = broken.train.precision = precision;
    const TrainResult unbroken = Trainer(whole).train();
    broken.train.save_every = 3;
    broken.train.keep_last = 0;
    Trainer(broken).train();
    anabatic::testing::go_back_to(broken.train.output, 3);
    const TrainResult resumed = Trainer(broken).train();
    EXPECT_TRUE(checkpoint_bytes(unbroken.checkpoint) == checkpoint_bytes(resumed.checkpoint))
        << precision;
  }
}

TEST(Lora, GivesEqualBitsOnAnyThreadCountAndPlan) {
  std::string first;
  for (const int threads : {1, 2, 3}) {
    const TemporaryDirectory folder;
    RunConfig run = adapter_run(folder.path());
    run.train.precision = "bf16";
    run.device.threads = threads;
    run.compiler.pack_transposed = threads != 2;
    if (threads == 3 && !anabatic::testing::plans_trivially()) run.memory.recompute = {"experts"};
    const std::string bytes = checkpoint_bytes(Trainer(run).train().checkpoint);
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << threads << " threads";
  }
}

TEST(Lora, MomentsMayLieOnDisk) {
  const TemporaryDirectory folder, other;
  RunConfig run = adapter_run(folder.path()), on_disk = adapter_run(other.path());
  on_disk.memory.optimizer_state = "disk";
  EXPECT_TRUE(checkpoint_bytes(Trainer(run).train().checkpoint) ==
              checkpoint_bytes(Trainer(on_disk).train().checkpoint));
}

TEST(Lora, ACheckpointIsAnAdapter) {
  const TemporaryDirectory folder;
  const RunConfig run = run_on(trained_base(folder.path()), folder.path());
  const TrainResult result = Trainer(run).train();
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors", "checksums.json",
                           "run_config.yaml", "training_state.json"})
    EXPECT_TRUE(fs::exists(result.checkpoint / file)) << file;
  for (const char* file : {"config.json", "model.safetensors"})
    EXPECT_FALSE(fs::exists(result.checkpoint / file)) << file;
  for (const auto& [name, bytes] : anabatic::testing::training_state(result.checkpoint))
    EXPECT_THAT(name, HasSubstr(".lora_"));
  const Json json = parse_json(read_file(result.checkpoint / "adapter_config.json"));
  EXPECT_EQ(json["base_model_name_or_path"], run.model.path);
  EXPECT_EQ(json["r"], 4);
  EXPECT_EQ(json["lora_alpha"], 8);
  EXPECT_THAT(read_file(fs::path(run.train.output) / kCoverageFile),
              AllOf(HasSubstr("attention        8       8"), HasSubstr("experts          6"),
                    HasSubstr("without an adapter: 2 of 2 router")));
}

// Layers of multi-token prediction are read for their loss, whose gradient reaches the adapters.
TEST(Lora, LayersOfMultiTokenPredictionStayFrozen) {
  constexpr const char* kMtpModel = R"("model_type": "glm4_moe", "moe_intermediate_size": 12,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 2)";
  const TemporaryDirectory start, without;
  RunConfig full = tiny_run(start.path(), kMtpModel);
  full.train.steps = 2;
  full.train.mtp_loss_coef = 0.5;
  const fs::path base = Trainer(full).train().checkpoint;
  const auto run_with = [&](const fs::path& folder, double coef) {
    RunConfig run = adapter_run(folder, kMtpModel);
    run.model = {.path = base.string()};
    run.lora.targets = {"all", "head"};
    run.train.steps = 4;
    run.train.mtp_loss_coef = coef;
    return run;
  };
  // auto leaves them out.
  Trainer plain(run_with(without.path(), RunConfig::Train::kCoefOfFiles));
  plain.train();
  const auto first = [](const fs::path& folder) {
    return anabatic::testing::json_lines(folder / "run" / "metrics.jsonl").front();
  };
  EXPECT_FALSE(first(without.path()).contains("mtp_loss"));
  const auto alone = hashes(plain.session());

  for (const char* lora_base : {"auto", "int8"}) {
    const TemporaryDirectory with;
    RunConfig run = run_with(with.path(), 0.5);
    run.lora.base = lora_base;
    if (run.lora.base != "auto") run.train.precision = "bf16";
    Trainer trainer(run);
    const auto before = hashes(trainer.session());
    const fs::path checkpoint = trainer.train().checkpoint;
    const auto after = hashes(trainer.session());
    EXPECT_GT(after.size(), alone.size()) << "the layers are there";
    std::size_t num_adapted = 0;
    for (const auto& [name, hash] : after) {
      EXPECT_EQ(before.at(name) == hash, !is_adapter(intern(name))) << name;
      if (!is_adapter(intern(name))) continue;
      ++num_adapted;
      // Runs of equal precision differ by that loss alone.
      if (run.lora.base == "auto") {
        EXPECT_NE(alone.at(name), hash) << name;
      }
    }
    EXPECT_GT(num_adapted, 10u);
    EXPECT_GT(first(with.path()).at("mtp_loss").get<double>(), 1);
    const io::SafetensorsDirectory files =
        io::SafetensorsDirectory::open(checkpoint, model::kAdapterStem);
    for (const auto& [name, entry] : files.entries())
      EXPECT_EQ(name.find("layers.2."), std::string::npos) << name;
  }
}

TEST(Lora, AResumeOnOtherWeightsIsRefused) {
  const TemporaryDirectory folder;
  const fs::path base = trained_base(folder.path(), 2), other = trained_base(folder.path(), 6);
  RunConfig run = run_on(base, folder.path());
  Trainer(run).train();
  run.train.steps += 2;
  run.model.path = other;
  EXPECT_THAT(failure(run),
              HasSubstr("the adapter belongs to other weights than those of " + other.string()));
  run.model.path = base;
  EXPECT_EQ(failure(run), "");
}

TEST(Lora, AnAdapterIsEvaluatedMergedAndTrainedOn) {
  const TemporaryDirectory folder;
  const fs::path base = trained_base(folder.path());
  RunConfig run = run_on(base, folder.path());
  run.train.steps = 30;
  run.data.validation = {anabatic::testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
  const TrainResult result = Trainer(run).train();

  RunConfig of_evaluation = run;
  of_evaluation.lora = {};
  EXPECT_TRUE(are_near(evaluate(of_evaluation).loss, result.before->loss));
  of_evaluation.model.adapter = result.checkpoint;
  const double unmerged = evaluate(of_evaluation).loss;
  EXPECT_TRUE(are_near(unmerged, result.after->loss));
  EXPECT_LT(unmerged, result.before->loss - 0.1);

  const Manifest manifest =
      convert(base, folder.path() / "merged", {.adapter = result.checkpoint.string()});
  ASSERT_TRUE(manifest.logits.has_value());  // compared with the model and the adapter next to it
  EXPECT_LT(manifest.logits->largest_difference, unmerged);
  EXPECT_THAT(check_manifest(folder.path() / "merged", base, std::nullopt), ::testing::IsEmpty());
  of_evaluation.model = {.path = (folder.path() / "merged").string()};
  EXPECT_TRUE(are_near(evaluate(of_evaluation).loss, unmerged));

  RunConfig further = run_on(base, folder.path());
  further.lora = {.from = result.checkpoint.string()};
  further.train.output = (folder.path() / "further").string();
  further.data.validation = run.data.validation;
  EXPECT_TRUE(are_near(Trainer(further).train().before->loss, unmerged));
  further.lora.rank = 8;
  EXPECT_THAT(failure(further), HasSubstr("lora.rank: expected 4, as"));
}

TEST(Lora, WhatIsNotThereYetIsRefused) {
  const TemporaryDirectory folder;
  const auto problems = [&](const std::function<void(RunConfig&)>& change) {
    RunConfig run = adapter_run(folder.path());
    change(run);
    std::string text;
    for (const std::string& problem : problems_of(run)) text += problem + "\n";
    return text;
  };
  EXPECT_EQ(problems([](RunConfig&) {}), "");
  EXPECT_THAT(problems([](RunConfig& run) { run.train.router_bias_update_rate = 0.1; }),
              HasSubstr("train.router_bias_update_rate: expected auto or 0: the rule changes "
                        "biases of the frozen routers, which PEFT's files of an adapter do not "
                        "carry, with lora, got 0.1"));
  EXPECT_THAT(problems([](RunConfig& run) { run.memory.parameters = "disk"; }),
              HasSubstr("memory.parameters"));
  EXPECT_THAT(problems([](RunConfig& run) { run.lora.from = "adapter"; }),
              HasSubstr("lora.targets: expected none, as lora.from says"));
  EXPECT_THAT(problems([](RunConfig& run) { run.model.adapter = "adapter"; }),
              HasSubstr("model.adapter: expected none"));

  RunConfig run = tiny_run(folder.path());
  run.model.path = folder.path() / "adapter";
  fs::create_directories(run.model.path);
  std::ofstream(fs::path(run.model.path) / "adapter_config.json") << "{}";
  EXPECT_THAT(failure(run), HasSubstr("model.path: expected a model, got an adapter"));
}

std::span<const float> floats_of(const io::GgufFiles& files, const std::string& tensor) {
  const io::GgufTensor* found = files.find(tensor);
  EXPECT_NE(found, nullptr) << tensor;
  if (found == nullptr) return {};
  return {reinterpret_cast<const float*>(found->data.data()), found->data.size() / sizeof(float)};
}

TEST(GgufAdapter, ScalesAsItsGroupsDoByOneAlpha) {
  const TemporaryDirectory folder;
  const RunConfig run = tiny_run(folder.path());
  const model::ModelConfig config = model::load_config(run.model.path);
  // Scales of 2 and 8.
  model::Adapter adapter =
      model::choose_adapter(config, {.targets = {"attention"}, .rank = 2, .alpha = 4});
  model::Adapter experts = model::choose_adapter(
      config, {.targets = {"experts"}, .rank = 4, .alpha = 16, .divides_by_root = true});
  adapter.groups.insert(adapter.groups.end(), experts.groups.begin(), experts.groups.end());
  model::AdapterValues values(adapter);
  float next = 0;
  for (const model::AdapterGroup& group : adapter.groups)
    for (const model::AdapterPart& part : group.parts) {
      std::vector<float> b(values.of(part.b()).size());
      for (float& value : b) value = ++next;
      values.writer()(part.b(), 0, b);
    }
  const fs::path file = folder.path() / "adapter.gguf";
  model::write_gguf_adapter(config, adapter, values.reader(), file);
  const io::GgufFiles files = io::GgufFiles::open(file);
  EXPECT_EQ(files.metadata().text("general.type"), "adapter");
  EXPECT_EQ(files.metadata().text("general.architecture"), "llama");
  EXPECT_EQ(files.metadata().number("adapter.lora.alpha"), 4.0);
  const std::span<const float> o = floats_of(files, "blk.1.attn_output.weight.lora_b"),
                               down = floats_of(files, "blk.1.ffn_down_exps.weight.lora_b");
  EXPECT_TRUE(std::ranges::equal(o, values.of("layers.1.attention.o.lora_B")));
  const std::span<const float> want = values.of("layers.1.experts.down.lora_B");
  ASSERT_EQ(down.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i)
    ASSERT_EQ(down[i], 8 * want[i]) << i;  // alpha / rank of the file is 1
  EXPECT_EQ(files.find("blk.1.ffn_down_exps.weight.lora_b")->shape.size(), 3u);
  EXPECT_EQ(files.tensors().size(), 2 * 2 * (4 + 3));
}

TEST(GgufAdapter, IsRefusedForAFamilyWithoutAnArchitecture) {
  const TemporaryDirectory folder;
  const fs::path file = folder.path() / "config.json";
  write_file_atomically(file, model::small_json("deepseek_v3"));
  const model::ModelConfig config = model::load_config(folder.path());
  const model::Adapter adapter = model::choose_adapter(config, {.targets = {"attention"}});
  const model::AdapterValues values(adapter);
  EXPECT_THROW(
      model::write_gguf_adapter(config, adapter, values.reader(), folder.path() / "a.gguf"),
      Unsupported);
  EXPECT_FALSE(fs::exists(folder.path() / "a.gguf"));
}

TEST(GgufAdapter, IsNotOfOneSideOfATiedTensor) {
  const TemporaryDirectory folder;
  const fs::path file = folder.path() / "config.json";
  write_file_atomically(file, model::small_json("llama", R"("tie_word_embeddings": true)"));
  const model::ModelConfig config = model::load_config(folder.path());
  for (const char* target : {"embedding", "head"}) {
    const model::Adapter adapter = model::choose_adapter(config, {.targets = {target}});
    const model::AdapterValues values(adapter);
    EXPECT_THAT(testing::message_of([&] {
                  model::write_gguf_adapter(config, adapter, values.reader(),
                                            folder.path() / "a.gguf");
                }),
                HasSubstr("are one tensor"));
  }
}

}  // namespace
}  // namespace anabatic::train
