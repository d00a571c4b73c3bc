// SPDX-License-Identifier: Apache-2.0
// Fine-tuning on rows: what is trained, that it learns, and that nothing depends on the cut.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "anabatic/error.h"
#include "base/philox.h"
#include "io/data/loader.h"
#include "model/model.h"
#include "support/letter_tokenizer.h"
#include "support/tiny_run.h"
#include "support/tolerance.h"
#include "train/evaluate.h"
#include "train/open_dataset.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::json_lines;
using testing::TemporaryDirectory;

// A prompt of letters, and the first of them as the answer.
std::string row_of(std::uint64_t seed, std::uint64_t number) {
  std::string prompt;
  const std::uint64_t length = 2 + random_below(seed, number, 0, 9);
  for (std::uint64_t i = 1; i <= length; ++i)
    prompt += static_cast<char>('a' + random_below(seed, number, i, 3));
  return fmt::format("{{\"prompt\": \"{} \", \"completion\": \"{}.\"}}\n", prompt,
                     std::string(2, prompt[0]));
}

RunConfig sft_run(const fs::path& folder, int num_rows = 200, const std::string& extra = "") {
  RunConfig run = testing::tiny_run(folder, extra);
  testing::write_letter_tokenizer(folder / "model", R"({"eos_token": "<|im_end|>"})");
  std::string rows;
  for (int i = 0; i < num_rows; ++i) rows += row_of(7, static_cast<std::uint64_t>(i));
  std::ofstream(folder / "rows.jsonl") << rows;
  run.data.train = {(folder / "rows.jsonl").string()};
  run.data.cache = "none";
  run.data.sequence_length = 32;
  run.train.objective = "sft";
  return run;
}

io::Dataset dataset_of(const RunConfig& run) {
  return open_dataset(run.data.train, run, model::load_config(run.model.path));
}

double first_loss(const RunConfig& run) {
  return json_lines(fs::path(run.train.output) / "metrics.jsonl").front()["loss"];
}

// The labels of the first row: a letter each, * for <|im_end|>, ! after a trained one, with its
// weight where that is not 1.
std::string marked_labels(const RunConfig& run) {
  const io::Dataset dataset = dataset_of(run);
  io::MicroBatch batch;
  io::SampleScratch scratch;
  const std::int64_t first = 0;
  io::fill_micro_batch(dataset, std::span(&first, 1), batch, scratch);
  std::string marked;
  for (std::size_t i = 0; batch.labels[i] >= 0; ++i) {
    marked += "abcdefghijklmnopqrstuvwxyz .e*s"[batch.labels[i]];
    if (batch.weights[i] != 0) marked += '!';
    if (batch.weights[i] != 0 && batch.weights[i] != 1)
      marked += fmt::format("{}", batch.weights[i]);
  }
  return marked;
}

TEST(Sft, TrainsTheCompletionAndTheEndOfItsRow) {
  const TemporaryDirectory folder;
  RunConfig run = sft_run(folder.path(), 0);
  std::ofstream(folder.path() / "rows.jsonl") << R"({"prompt": "ab ", "completion": "cd."})";
  EXPECT_EQ(marked_labels(run), "b c!d!.!*!");
  run.data.loss_on = "all";
  EXPECT_EQ(marked_labels(run), "b! !c!d!.!*!");
  run.data.loss_on = "completion";
  run.data.append_eos = io::AddToken::kNever;
  EXPECT_EQ(marked_labels(run), "b c!d!.!");
}

constexpr const char* kTemplate =
    "{% for m in messages %}{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}";

TEST(Sft, TrainsTheTurnsOfTheAssistantToTheirStopToken) {
  const TemporaryDirectory folder;
  RunConfig run = sft_run(folder.path(), 0);
  run.data.sequence_length = 64;
  run.data.chat_template = (folder.path() / "template.jinja").string();
  std::ofstream(run.data.chat_template) << kTemplate;
  const auto write = [&](const std::string& messages) {
    std::ofstream(folder.path() / "rows.jsonl") << "{\"messages\": [" << messages << "]}";
  };
  const std::string user = R"({"role": "user", "content": "ab"}, )";
  write(user + R"({"role": "assistant", "content": "c", "weight": 0.5}, )" + user +
        R"({"role": "assistant", "content": "d"})");
  EXPECT_EQ(marked_labels(run), "ser ab*assistant c!0.5*!0.5user ab*assistant d!*!");
  run.data.loss_on = "completion";
  EXPECT_EQ(marked_labels(run), "ser ab*assistant c*user ab*assistant d!*!");
  run.data.loss_on = "assistant";
  write(R"({"role": "user", "content": "a<|im_end|>b"}, {"role": "assistant", "content": ""})");
  EXPECT_EQ(marked_labels(run).find('*'), marked_labels(run).find("*assistant"))
      << "what a user writes is no special token";
  EXPECT_TRUE(marked_labels(run).ends_with("assistant *!")) << marked_labels(run);
  // The template closes no turn: EOS ends the last one, and nothing the first.
  std::ofstream(run.data.chat_template) << "{% for m in messages %}{{ m.content }} {% endfor %}";
  write(user + R"({"role": "assistant", "content": "c"})");
  EXPECT_TRUE(marked_labels(run).ends_with("c! *!")) << marked_labels(run);
  write(R"({"role": "assistant", "content": "c"}, )" + user +
        R"({"role": "assistant", "content": "d"})");
  try {
    dataset_of(run);
    FAIL() << "a turn without a stop token is trained";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rows.jsonl:1: messages[0]: expected a special token"));
  }
  run.data.require_stop_token = false;
  EXPECT_TRUE(marked_labels(run).ends_with("d! *!"));
}

TEST(Sft, LearnsAndGoesOnFromACheckpointToTheBit) {
  const TemporaryDirectory folder;
  RunConfig run = sft_run(folder.path());
  run.train.steps = 40;
  run.train.save_every = 20;
  run.train.keep_last = 0;
  run.data.validation = run.data.train;
  const fs::path whole = Trainer(run).train().checkpoint;
  const std::string want = testing::checkpoint_bytes(whole);
  const auto lines = json_lines(folder.path() / "run" / "metrics.jsonl");
  EXPECT_LT(lines.back()["loss"].get<double>(), 0.5 * lines.front()["loss"].get<double>());
  testing::go_back_to(run.train.output, 20);
  EXPECT_EQ(testing::checkpoint_bytes(Trainer(run).train().checkpoint), want);
}

TEST(Sft, TwoRanksAreOneToTheBit) {
  const TemporaryDirectory folder;
  RunConfig run = sft_run(folder.path());
  run.train.steps = 4;
  run.fusions.off.insert("fuse_head_loss");
  const auto trained = [&](std::int64_t ranks) {
    run.train.output = folder.path() / fmt::format("ranks-{}", ranks);
    run.parallel.local_ranks = ranks;
    run.train.gradient_accumulation_steps = 2 / ranks;
    return testing::checkpoint_bytes(Trainer(run).train().checkpoint);
  };
  EXPECT_EQ(trained(1), trained(2));
}

// Weights of the tokens of `run`'s data, uneven, some of them 0.
void write_uneven_weights(RunConfig& run, const fs::path& folder) {
  const fs::path prefix = testing::write_tiny_tokens(folder, "weighted", 60, 9);
  const auto pair = io::indexed_pair(prefix);
  const io::IndexedFile tokens(*pair);
  std::vector<float> weights;
  for (std::int64_t i = 0; i < tokens.num_tokens(); ++i)
    weights.push_back(static_cast<float>(random_below(3, 1, static_cast<std::uint64_t>(i), 4)) / 2);
  io::WeightFileWriter writer(*pair, false);
  writer.append(weights);
  writer.finish(tokens.num_documents());
  run.data.train = {prefix.string()};
  run.data.sequence_length = 48;
}

TEST(Sft, TheLossIsOneMeanOverTheStepWhateverItsCut) {
  for (const char* model : {"", R"("model_type": "glm4_moe", "moe_intermediate_size": 12,
      "n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 2)"}) {
    std::vector<double> losses, mtp_losses, norms;
    for (const std::int64_t micro_batches : {1, 4}) {
      const TemporaryDirectory folder;
      RunConfig run = sft_run(folder.path(), 1, model);
      write_uneven_weights(run, folder.path());
      if (*model != '\0') run.train.mtp_loss_coef = 0.5;
      run.train.steps = 1;
      run.train.gradient_accumulation_steps = micro_batches;
      run.train.micro_batch_size = 4 / micro_batches;
      run.train.balance_loss = "none";  // of a micro-batch
      Trainer(run).train();
      const auto line = json_lines(folder.path() / "run" / "metrics.jsonl").front();
      losses.push_back(line["loss"]);
      norms.push_back(line["grad_norm"]);
      mtp_losses.push_back(line.value("mtp_loss", 0.0));
    }
    for (const auto& values : {losses, mtp_losses})
      EXPECT_LE(std::abs(values[0] - values[1]),
                testing::agreement_tolerance(values[0], DType::kFloat32))
          << model;
    EXPECT_EQ(mtp_losses[0] > 0, *model != '\0');
  }
}

TEST(Sft, TheLossOfOneRowIsThatOfItsLabelsAlone) {
  const TemporaryDirectory folder;
  RunConfig run = sft_run(folder.path(), 1);
  write_uneven_weights(run, folder.path());
  run.train.steps = 1;
  Trainer(run).train();
  const double weighted = first_loss(run);
  fs::remove(folder.path() / "weighted.weights");
  run.train.output = folder.path() / "plain";
  Trainer(run).train();
  EXPECT_NE(weighted, first_loss(run)) << "the weights are read";
}

TEST(Sft, RefusesWhatItCannotTrainOn) {
  const TemporaryDirectory folder;
  RunConfig run = sft_run(folder.path(), 1);
  const auto error_with = [&](const std::string& text) -> std::string {
    std::ofstream(folder.path() / "rows.jsonl") << text;
    try {
      dataset_of(run);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(error_with(R"({"prompt": "a", "chosen": "b", "rejected": "c"})"),
              HasSubstr("dpo trains on preferences"));
  EXPECT_THAT(error_with("{\"prompt\": \"a\"}\n"), HasSubstr("rows.jsonl:1: expected one of"));
  run.data.max_length = 3;
  run.data.truncation = "error";
  EXPECT_THAT(error_with(R"({"prompt": "abc", "completion": "d"})"),
              HasSubstr("expected rows of at most 3 tokens"));
  run.data.truncation = "keep_start";
  EXPECT_THAT(error_with(R"({"prompt": "abc", "completion": "d"})"),
              HasSubstr("expected a row with a trained token, got 1 rows"));
}

}  // namespace
}  // namespace anabatic::train
