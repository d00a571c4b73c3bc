// SPDX-License-Identifier: Apache-2.0
// What the check of an adapter sees by itself, and what it sees next to a merged model.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>

#include "base/json.h"
#include "base/text.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "support/tiny_run.h"
#include "train/convert/convert.h"
#include "train/proof/adapter.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryDirectory;

constexpr std::int64_t kRank = 2, kExperts = 4;

class AdapterProof : public ::testing::Test {
 protected:
  void SetUp() override {
    RunConfig run = testing::tiny_run(folder_.path());
    run.train.steps = 2;
    run.train.output = folder_.path() / "base";
    base_ = Trainer(run).train().checkpoint;
    adapter_ = train_adapter("adapter", 0.01);
    merged_ = merge("merged", adapter_);
  }

  std::string train_adapter(const std::string& name, double learning_rate) const {
    RunConfig run = testing::tiny_run(folder_.path());
    run.model.path = base_;
    run.model.init = "pretrained";
    run.lora.targets = {"attention", "experts"};
    run.lora.rank = kRank;
    run.train.steps = 4;
    run.train.output = folder_.path() / name;
    run.optimizer.learning_rate = learning_rate;
    return Trainer(run).train().checkpoint;
  }

  std::string merge(const std::string& name, const std::string& adapter) const {
    const fs::path output = folder_.path() / name;
    convert(base_, output, {.dtype = DType::kFloat32, .adapter = adapter});
    return output;
  }

  // A copy of the adapter whose B of each stack has its columns in another order.
  std::string with_columns(const std::string& name,
                           const std::function<std::int64_t(std::int64_t)>& source) const {
    const fs::path copy = folder_.path() / name;
    fs::copy(adapter_, copy, fs::copy_options::recursive);
    const auto files = io::SafetensorsDirectory::open(adapter_, "adapter_model");
    std::vector<io::TensorInfo> infos;
    for (const auto& [tensor, entry] : files.entries())
      infos.push_back({tensor, DType::kFloat32, entry.shape});
    auto writer = io::SafetensorsWriter::single_file(copy / "adapter_model.safetensors", infos);
    for (const auto& [tensor, entry] : files.entries()) {
      std::vector<float> values(static_cast<std::size_t>(entry.num_elements()));
      std::memcpy(values.data(), entry.data.data(), entry.data.size());
      const std::int64_t columns = entry.shape[1];
      if (tensor.find("experts") != std::string::npos && tensor.ends_with("lora_B.weight")) {
        EXPECT_EQ(columns, kRank * kExperts);
        const std::vector<float> before = values;
        for (std::int64_t row = 0; row < entry.shape[0]; ++row)
          for (std::int64_t column = 0; column < columns; ++column)
            values[static_cast<std::size_t>(row * columns + column)] =
                before[static_cast<std::size_t>(row * columns + source(column))];
      }
      writer.write(tensor, std::as_bytes(std::span(values)));
    }
    writer.finish();
    return copy;
  }

  const TemporaryDirectory folder_;
  std::string base_, adapter_, merged_;
};

TEST_F(AdapterProof, AGoodAdapterHasNoProblem) {
  for (const std::string& merged : {std::string(), merged_}) {
    const AdapterReport report = check_adapter(adapter_, base_, merged);
    EXPECT_THAT(report.problems, IsEmpty());
    EXPECT_EQ(report.tokens, 64);
    EXPECT_EQ(report.norms.size(), 2u);
    for (const auto& [kind, norm] : report.norms) EXPECT_GT(norm, 0) << kind;
    EXPECT_GT(report.effect, 10 * report.merge_bound);
    EXPECT_LE(report.merge_difference, report.merge_bound);
    EXPECT_THAT(report.coverage, HasSubstr("attention        8       8"));
  }
}

TEST_F(AdapterProof, AnAdapterThatDoesNothingIsNamed) {
  const AdapterReport report = check_adapter(train_adapter("fresh", 0), base_);
  EXPECT_LE(report.effect, report.merge_bound);
  EXPECT_THAT(report.problems, Contains(HasSubstr("14 of 14 adapters of weights change nothing")));
  EXPECT_THAT(report.problems, Contains(HasSubstr("changes no logit beyond rounding")));
}

// An embedding that is the head cannot get what is of one of them.
TEST(AdapterProofOfATiedModel, ChecksWhatIsNotMerged) {
  const TemporaryDirectory folder;
  RunConfig run = testing::tiny_run(folder.path(), "\"tie_word_embeddings\": true");
  run.train.output = folder.path() / "base";
  const std::string base = Trainer(run).train().checkpoint;
  run.model.path = base;
  run.model.init = "pretrained";
  for (const char* target : {"embedding", "head"})
    for (const double rate : {0.0, 0.01}) {
      run.lora.targets = {target};
      run.optimizer.learning_rate = rate;
      run.train.output = folder.path() / fmt::format("{}-{}", target, rate);
      const AdapterReport report = check_adapter(Trainer(run).train().checkpoint, base);
      EXPECT_THAT(report.not_merged, HasSubstr("are one tensor"));
      EXPECT_EQ(report.problems.empty(), rate > 0) << target;
      if (rate == 0) {
        EXPECT_THAT(report.problems, Contains(HasSubstr("1 of 1 adapters of weights")));
      }
    }
}

// A file with its values at other places is an adapter too. What it should be says another program.
TEST_F(AdapterProof, ColumnsByRankAreFoundAgainstAMergedModel) {
  const std::string by_rank = with_columns(
      "by_rank", [](std::int64_t column) { return column % kRank * kExperts + column / kRank; });
  EXPECT_THAT(check_adapter(by_rank, base_).problems, IsEmpty());
  EXPECT_THAT(check_adapter(by_rank, base_, merged_).problems,
              Contains(HasSubstr("is not the model with the adapter next to it")));
}

TEST_F(AdapterProof, PermutedExpertsAreFoundAgainstAMergedModel) {
  const std::string permuted = with_columns("permuted", [](std::int64_t column) {
    return column / kExperts * kExperts + (column + 1) % kExperts;
  });
  EXPECT_THAT(check_adapter(permuted, base_, merged_).problems,
              Contains(HasSubstr("is not the model with the adapter next to it")));
}

TEST_F(AdapterProof, AMergeWithoutAlphaIsFound) {
  const fs::path copy = folder_.path() / "plain";
  fs::copy(adapter_, copy, fs::copy_options::recursive);
  Json config = parse_json(read_file(copy / "adapter_config.json"));
  ASSERT_EQ(config["lora_alpha"], 2 * kRank);
  config["lora_alpha"] = kRank;  // a scale of 1
  std::ofstream(copy / "adapter_config.json") << config.dump();
  EXPECT_THAT(check_adapter(adapter_, base_, merge("unscaled", copy)).problems,
              Contains(HasSubstr("is not the model with the adapter next to it")));
}

TEST_F(AdapterProof, AMergeInHalfPrecisionIsWithinItsRounding) {
  const fs::path output = folder_.path() / "merged_bf16";
  convert(base_, output, {.dtype = DType::kBFloat16, .adapter = adapter_});
  const AdapterReport whole = check_adapter(adapter_, base_, merged_),
                      rounded = check_adapter(adapter_, base_, output);
  EXPECT_LE(rounded.merge_difference, rounded.merge_bound);
  EXPECT_GT(rounded.merge_difference, whole.merge_bound);
}

}  // namespace
}  // namespace anabatic::train
