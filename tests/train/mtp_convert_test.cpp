// SPDX-License-Identifier: Apache-2.0
// Layers of multi-token prediction in manifests: where they are removed, in whole or in part, and
// where they are left out on purpose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "model/mtp.h"
#include "support/tiny_run.h"
#include "train/convert/convert.h"
#include "train/trainer.h"
#include "unit/model/model_files.h"
#include "unit/model/planted_fault.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kLayer = "model.layers.3.";  // the first of two
constexpr const char* kProjection = "model.layers.3.eh_proj.weight";
constexpr const char* kExpert = "model.layers.3.mlp.experts.2.down_proj.weight";
constexpr const char* kCopy = "model.layers.4.embed_tokens.weight";

class MtpConvert : public ::testing::Test {
 protected:
  fs::path path(const char* name) const { return folder_.path() / name; }

  // Files with a copy of the embedding in the last layer.
  void SetUp() override {
    fs::create_directories(path("source"));
    io::write_text(path("source") / "config.json",
                   model::small_json("glm4_moe", R"("num_nextn_predict_layers": 2, "vocab_size": 97,
                                                    "first_k_dense_replace": 1)"));
    model::ModelConfig config = model::load_config(path("source"));
    model::take_mtp(config, false);
    model::WeightMap map = model::make_weight_map(config);
    map.tensors.push_back(map.tensors.front());
    map.tensors.back().name = kCopy;
    const model::States states = model::random_states(config, 7);
    model::export_weights(map, path("source"), model::SaveDType::kSource, model::values_of(states));
  }

  // Removes tensors whose names begin so.
  static void remove(const fs::path& directory, const std::vector<std::string>& beginnings) {
    model::plant(directory, [&](model::TensorBytes& bytes) {
      std::erase_if(bytes, [&](const auto& named) {
        return std::ranges::any_of(
            beginnings, [&](const std::string& begin) { return named.first.starts_with(begin); });
      });
    });
  }

  static std::string refusal_of_check(const fs::path& directory) {
    return model::message_of<InvalidArgument>([&] { check_manifest(directory, {}, {}); });
  }

  testing::TemporaryDirectory folder_;
};

TEST_F(MtpConvert, RemovedLayersOfAConversionAreNamed) {
  convert(path("source"), path("copy"), {.compares_logits = false});
  EXPECT_THAT(check_manifest(path("copy"), path("source"), {}), IsEmpty());
  remove(path("copy"), {kLayer, "model.layers.4."});
  const std::vector<std::string> problems = check_manifest(path("copy"), {}, {});
  for (const char* tensor : {kProjection, kExpert, "model.layers.4.shared_head.norm.weight"})
    EXPECT_THAT(problems, Contains(std::string(tensor) + ": missing"));
  for (const std::string& problem : problems)
    EXPECT_THAT(problem, HasSubstr("model.layers.")) << "nothing else is missing";
}

TEST_F(MtpConvert, HalfOfTheLayersIsAnErrorWithTheTensorsNamed) {
  convert(path("source"), path("copy"), {.compares_logits = false});
  remove(path("copy"), {kLayer});
  EXPECT_THAT(refusal_of_check(path("copy")), HasSubstr(std::string(kProjection) + ": missing"));
  remove(path("source"), {kLayer + "mlp."});
  EXPECT_THAT(model::message_of<InvalidArgument>([&] { convert(path("source"), path("out"), {}); }),
              HasSubstr(std::string(kExpert) + ": missing"));
  RunConfig run = testing::tiny_run(folder_.path());
  run.model = {.path = path("source")};
  run.train.output = path("run");
  EXPECT_THAT(model::message_of<InvalidArgument>([&] { Trainer(run).train(); }),
              HasSubstr(std::string(kExpert) + ": missing"));
}

TEST_F(MtpConvert, LeavesLayersOutAndNamesThem) {
  const Manifest whole = convert(path("source"), path("whole"), {.compares_logits = false});
  EXPECT_THAT(whole.dropped, IsEmpty());
  ASSERT_EQ(whole.repeated.size(), 1u);
  const Manifest manifest = convert(path("source"), path("less"), {.keeps_mtp = false});
  EXPECT_EQ(manifest.logits->largest_difference, 0);
  EXPECT_EQ(num_elements(manifest.read), num_elements(manifest.written));
  EXPECT_EQ(num_elements(manifest.written) + num_elements(manifest.dropped),
            num_elements(whole.read) + num_elements(whole.repeated));
  std::vector<std::string> names;
  for (const ManifestTensor& tensor : manifest.dropped) names.push_back(tensor.name);
  for (const char* tensor : {kProjection, kExpert, kCopy}) EXPECT_THAT(names, Contains(tensor));
  EXPECT_EQ(read_manifest(path("less")).dropped, manifest.dropped);
  EXPECT_THAT(read_file(path("less") / "config.json"),
              HasSubstr("\"num_nextn_predict_layers\": 0"));
  EXPECT_TRUE(model::load_config(path("less")).mtp_layers.empty());
  EXPECT_THAT(check_manifest(path("less"), path("source"), {}), IsEmpty());
  model::plant(path("source"),
               [](model::TensorBytes& bytes) { bytes.at(kExpert)[0] ^= std::byte{1}; });
  EXPECT_THAT(check_manifest(path("less"), path("source"), {}), Contains(HasSubstr(kExpert)));
}

class MtpRun : public ::testing::Test {
 protected:
  static RunConfig run(const fs::path& folder) {
    RunConfig run = testing::tiny_run(folder, R"("model_type": "glm4_moe",
        "moe_intermediate_size": 12, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 2)");
    run.train.steps = 1;
    return run;
  }
};

TEST_F(MtpRun, ManifestsOfRunsKnowWhetherLayersWereLeftOut) {
  const testing::TemporaryDirectory start, kept, left_out;
  RunConfig first = run(start.path());
  first.train.mtp_loss_coef = 0.5;
  const fs::path source = Trainer(first).train().checkpoint;
  const auto go_on = [&](const fs::path& folder, bool keeps) {
    RunConfig next = run(folder);
    next.model = {.path = source, .keep_mtp = keeps};
    return Trainer(next).train().checkpoint;
  };
  const fs::path with = go_on(kept.path(), true), without = go_on(left_out.path(), false);
  for (const fs::path& checkpoint : {with, without}) {
    EXPECT_THAT(check_manifest(checkpoint, source, {}), IsEmpty());
    EXPECT_THAT(check_manifest(checkpoint.parent_path(), source, {}), IsEmpty());
  }
  EXPECT_THAT(read_manifest(with.parent_path()).dropped, IsEmpty());
  EXPECT_THAT(read_manifest(without.parent_path()).dropped, Not(IsEmpty()));
  EXPECT_THAT(read_manifest(without.parent_path()).ignored, IsEmpty());
  EXPECT_TRUE(model::load_config(without).mtp_layers.empty());
  model::plant(with, [](model::TensorBytes& bytes) {
    std::erase_if(bytes, [](const auto& named) {
      return named.first.starts_with("model.layers.2.") ||
             named.first.starts_with("model.layers.3.");
    });
  });
  EXPECT_THAT(check_manifest(with, {}, {}), Contains(std::string(kProjection) + ": missing"));
}

}  // namespace
}  // namespace anabatic::train
