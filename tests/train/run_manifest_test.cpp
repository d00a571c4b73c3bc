// SPDX-License-Identifier: Apache-2.0
// The manifests of a run: of what it read from files, and of each checkpoint.
#include "train/convert/run_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/text.h"
#include "support/tiny_run.h"
#include "train/convert/convert.h"
#include "train/trainer.h"
#include "unit/model/model_files.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

class RunManifest : public ::testing::Test {
 protected:
  void SetUp() override {
    run_ = testing::tiny_run(folder_.path(), R"("tie_word_embeddings": true)");
    run_.train.steps = 2;
    run_.model.init = "pretrained";
    write_weights(model::SaveDType::kSource);
  }

  // Random weights, with the head that is the embedding once more.
  void write_weights(model::SaveDType dtype) {
    const model::ModelConfig config = model::load_config(run_.model.path);
    model::WeightMap map = model::make_weight_map(config);
    model::FileTensor head = map.tensors.front();
    head.name = "lm_head.weight";
    map.tensors.push_back(std::move(head));
    const model::States states = model::random_states(config, 7);
    model::export_weights(map, run_.model.path, dtype, model::values_of(states));
  }

  // Changes one bit in the middle of the last tensor of a file.
  static void damage(const fs::path& directory) {
    testing::flip_bit(directory / "model.safetensors", 40);
  }

  testing::TemporaryDirectory folder_;
  RunConfig run_;
};

TEST_F(RunManifest, AccountsForEveryTensorThatWasRead) {
  const std::vector<std::string> before = names_in(run_.model.path);
  Trainer(run_).train();
  EXPECT_EQ(names_in(run_.model.path), before);
  const Manifest manifest = read_manifest(run_.train.output);
  EXPECT_EQ(manifest.kind, ManifestKind::kImport);
  EXPECT_EQ(num_elements(manifest.read), model::load_config(run_.model.path).counts.total);
  ASSERT_EQ(manifest.repeated.size(), 1u);
  EXPECT_EQ(manifest.repeated[0].name, "lm_head.weight");
  EXPECT_EQ(manifest.repeated[0].checksum, manifest.read.front().checksum);
  for (const ManifestTensor& tensor : manifest.read) {
    std::int64_t placed = 0;
    for (const ManifestPart& part : tensor.parts) placed += part.count;
    EXPECT_EQ(placed, tensor.num_elements()) << tensor.name;
  }
  EXPECT_THAT(check_manifest(run_.train.output, {}, {}), IsEmpty());
  EXPECT_THAT(check_manifest(run_.train.output, run_.model.path, {}), IsEmpty());
}

TEST_F(RunManifest, FindsASourceThatChanged) {
  Trainer(run_).train();
  const std::string last = read_manifest(run_.train.output).read.back().name;
  fs::remove(fs::path(run_.model.path) / io::kChecksumsFile);
  model::States states = model::random_states(model::load_config(run_.model.path), 7);
  states.find("norm.weight")->second[3] += 1;
  const model::WeightMap map = model::make_weight_map(model::load_config(run_.model.path));
  model::export_weights(map, run_.model.path, model::SaveDType::kSource, model::values_of(states));
  const auto problems = check_manifest(run_.train.output, {}, {});
  EXPECT_THAT(problems, Contains(HasSubstr("tensor model.norm.weight: expected checksum")));
  EXPECT_THAT(problems, Contains(HasSubstr("lm_head.weight: missing")));
  EXPECT_EQ(problems.size(), 2u);
}

TEST_F(RunManifest, ACheckpointHasTheHashesOfItsChecksums) {
  const fs::path checkpoint = Trainer(run_).train().checkpoint;
  const Manifest manifest = read_manifest(checkpoint);
  EXPECT_EQ(manifest.kind, ManifestKind::kCheckpoint);
  const auto sums = io::read_checksums(checkpoint);
  ASSERT_TRUE(sums);
  EXPECT_TRUE(sums->contains(kManifestFile));
  const auto& stored = sums->at("model.safetensors").tensors;
  EXPECT_EQ(stored.size(), manifest.written.size());
  for (const ManifestTensor& tensor : manifest.written)
    EXPECT_EQ(stored.find(tensor.name)->second, tensor.checksum) << tensor.name;
  EXPECT_THAT(check_manifest(checkpoint, {}, {}), IsEmpty());
  EXPECT_THAT(check_manifest(checkpoint, run_.model.path, {}), IsEmpty());
}

TEST_F(RunManifest, FindsADamagedCheckpoint) {
  const fs::path checkpoint = Trainer(run_).train().checkpoint;
  damage(checkpoint);
  EXPECT_THAT(check_manifest(checkpoint, {}, {}), Contains(HasSubstr("expected checksum")));
}

// As one who forges hashes would, but not both files.
TEST_F(RunManifest, FindsAManifestThatDisagreesWithTheChecksums) {
  const fs::path checkpoint = Trainer(run_).train().checkpoint;
  Manifest manifest = read_manifest(checkpoint);
  manifest.written.front().checksum ^= 1;
  write_manifest(checkpoint, manifest);
  EXPECT_THAT(check_manifest(checkpoint, {}, {}), Contains(HasSubstr("checksums.json: tensor")));
}

TEST_F(RunManifest, FindsACheckpointOfAnotherForm) {
  const fs::path checkpoint = Trainer(run_).train().checkpoint;
  Manifest manifest = read_manifest(checkpoint);
  const std::string dropped = manifest.written.back().name;
  manifest.written.pop_back();
  write_manifest(checkpoint, manifest);
  EXPECT_THAT(check_manifest(checkpoint, run_.model.path, {}),
              Contains(HasSubstr("model has it: " + dropped + ": missing")));
}

TEST_F(RunManifest, ARunFromRandomValuesReadNothing) {
  run_.model.init = "random";
  const fs::path checkpoint = Trainer(run_).train().checkpoint;
  EXPECT_FALSE(fs::exists(fs::path(run_.train.output) / kManifestFile));
  EXPECT_THAT(check_manifest(checkpoint, {}, {}), IsEmpty());
}

// A later run in the directory puts the manifest aside with the logs.
TEST_F(RunManifest, MovesAsideWithTheLogs) {
  Trainer(run_).train();
  run_.train.resume = "never";
  Trainer(run_).train();
  EXPECT_TRUE(fs::exists(fs::path(run_.train.output) / "before-1" / kManifestFile));
  EXPECT_THAT(check_manifest(run_.train.output, {}, {}), IsEmpty());
}

}  // namespace
}  // namespace anabatic::train
