// SPDX-License-Identifier: Apache-2.0
// Steps that cannot learn: numbers that are not finite, batches without labels, ids beyond the
// vocabulary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/data/indexed_file.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "support/error_message.h"
#include "support/tiny_run.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::checkpoint_bytes;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using ::testing::HasSubstr;

// Trained for a step from random weights, then each tensor changed and the run pointed at the
// result.
template <class Change>
RunConfig run_from_changed_weights(const TemporaryDirectory& folder, const std::string& extra,
                                   Change&& change) {
  RunConfig run = tiny_run(folder.path(), extra);
  run.train.steps = 0;
  const fs::path model = Trainer(run).train().checkpoint;
  std::map<std::string, std::vector<float>> values;
  std::vector<io::TensorInfo> infos;
  {
    const auto source = io::SafetensorsDirectory::open(model);
    for (const auto& [name, entry] : source.entries()) {
      std::vector<float>& tensor = values[name];
      tensor.resize(static_cast<std::size_t>(entry.num_elements()));
      std::memcpy(tensor.data(), entry.data.data(), entry.data.size());
      infos.push_back({name, DType::kFloat32, entry.shape});
      change(name, tensor);
    }
  }
  const fs::path changed = folder.path() / "changed";
  fs::create_directories(changed);
  fs::copy_file(model / "config.json", changed / "config.json");
  io::SafetensorsWriter writer(changed, infos);
  for (const auto& [name, tensor] : values) writer.write(name, std::as_bytes(std::span(tensor)));
  writer.finish();
  run.model.path = changed;
  run.model.init = "pretrained";
  run.train.output = folder.path() / "changed_run";
  run.train.steps = 3;
  run.train.save_every = 1;
  return run;
}

TEST(NonFinite, LossNamesStepLayerAndTensor) {
  const TemporaryDirectory folder;
  const RunConfig run = run_from_changed_weights(folder, "", [](const std::string& name, auto& w) {
    if (name.find("layers.1") != std::string::npos && name.find(".w1.") != std::string::npos)
      std::fill(w.begin(), w.end(), std::numeric_limits<float>::infinity());
  });
  const std::string message = testing::message_of([&] { Trainer(run).train(); });
  EXPECT_THAT(message, HasSubstr("[train] step 1: the loss is"));
  EXPECT_THAT(message, HasSubstr("first in layers.1"));
  EXPECT_THAT(message, HasSubstr("experts"));
  EXPECT_FALSE(latest_checkpoint(run.train.output).has_value());
}

TEST(NonFinite, GradientBehindAFiniteLossNamesTensorsAndLeavesTheCheckpoint) {
  const TemporaryDirectory folder;
  // A residual stream of 1e-6 and a last norm weight of 1e36: logits are finite, the gradient
  // of the norm's input, which is divided by the stream's size, is not.
  const RunConfig run = run_from_changed_weights(
      folder, "\"rms_norm_eps\": 1e-12", [](const std::string& name, auto& w) {
        const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
        const float factor = has("embed") || has("o_proj") || has(".w2.") ? 1e-5f
                             : name == "model.norm.weight"                ? 1e36f
                                                                          : 1.0f;
        for (float& value : w) value *= factor;
      });
  const std::string message = testing::message_of([&] { Trainer(run).train(); });
  EXPECT_THAT(message, HasSubstr("[train] step 1: the gradient's norm is"));
  EXPECT_THAT(message, HasSubstr("layers."));
  EXPECT_THAT(message, HasSubstr("embedding.weight"));
  EXPECT_FALSE(latest_checkpoint(run.train.output).has_value());
  EXPECT_EQ(read_file(fs::path(run.train.output) / "metrics.jsonl"), "");
}

void write_documents(const fs::path& prefix, const std::vector<std::vector<std::int32_t>>& all) {
  io::IndexedFileWriter writer(prefix, io::TokenType::kUint16);
  for (const auto& document : all) {
    writer.append(document);
    writer.end_document();
  }
  writer.finish();
}

TEST(StepsWithoutLabels, ChangeNoParameterAndDoNotEndTheRun) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  // Samples of 4 tokens: one document; then four documents of one token, which have no label.
  run.data.train = {folder.path() / "labels"};
  write_documents(run.data.train[0], {{1, 2, 3, 4}, {5}, {6}, {7}, {8}});
  run.data.sequence_length = 4;
  run.data.shuffle = false;
  run.train.micro_batch_size = 1;
  run.train.steps = 4;
  run.train.save_every = 1;
  run.train.keep_last = 0;
  Trainer(run).train();
  std::istringstream text(read_file(fs::path(run.train.output) / "metrics.jsonl"));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(parse_json(line));
  ASSERT_EQ(lines.size(), 4u);
  for (const std::size_t step : {1u, 3u}) {
    EXPECT_EQ(lines[step]["loss"], 0.0);
    EXPECT_EQ(lines[step]["grad_norm"], 0.0);
    EXPECT_EQ(lines[step]["tokens"], 0);
  }
  EXPECT_GT(lines[2]["loss"], 0.0);
  const fs::path output = run.train.output;
  const auto bytes = [&](std::int64_t step) {
    return checkpoint_bytes(output / checkpoint_name(step));
  };
  EXPECT_TRUE(bytes(1) == bytes(2));
  EXPECT_FALSE(bytes(2) == bytes(3));
  EXPECT_TRUE(bytes(3) == bytes(4));
}

TEST(Data, NamesFileDocumentAndOffsetOfAnIdBeyondTheVocabulary) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.data.train = {folder.path() / "beyond"};
  write_documents(run.data.train[0], {std::vector<std::int32_t>(30, 1), {3, 4, 5, 97, 6}});
  run.data.shuffle = false;
  const std::string message = testing::message_of([&] { Trainer(run).train(); });
  EXPECT_THAT(message, HasSubstr("beyond, document 1, token 3"));
  EXPECT_THAT(message, HasSubstr("got 97"));
}

}  // namespace
}  // namespace anabatic::train
