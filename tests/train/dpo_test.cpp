// SPDX-License-Identifier: Apache-2.0
// Training on preferences: what is trained, the reference, and that nothing depends on the cut.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "anabatic/error.h"
#include "base/philox.h"
#include "base/text.h"
#include "io/data/loader.h"
#include "io/data/reference_file.h"
#include "model/model.h"
#include "support/error_message.h"
#include "support/letter_tokenizer.h"
#include "support/tiny_run.h"
#include "support/tolerance.h"
#include "train/open_dataset.h"
#include "train/tokenize.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::json_lines;
using ::testing::Not;
using testing::TemporaryDirectory;

constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyz .e*s";

// Chosen repeats the prompt's first letter, rejected another one, as often as the number says.
std::string pair_of(std::uint64_t number) {
  const auto letter = [&](std::uint64_t i, int of) {
    return static_cast<char>('a' + random_below(5, number, i, static_cast<std::uint64_t>(of)));
  };
  std::string prompt;
  for (std::uint64_t i = 0; i < 1 + random_below(5, number, 100, 4); ++i) prompt += letter(i, 3);
  return fmt::format(
      "{{\"prompt\": \"{} \", \"chosen\": \"{}.\", \"rejected\": \"{}.\"}}\n", prompt,
      std::string(1 + random_below(5, number, 101, 4), prompt[0]),
      std::string(1 + random_below(5, number, 102, 4), letter(103, 3) == 'a' ? 'x' : 'y'));
}

RunConfig dpo_run(const fs::path& folder, int num_pairs = 60, const std::string& extra = "") {
  RunConfig run = testing::tiny_run(folder, extra);
  testing::write_letter_tokenizer(folder / "model", R"({"eos_token": "<|im_end|>"})");
  std::string rows;
  for (int i = 0; i < num_pairs; ++i) rows += pair_of(static_cast<std::uint64_t>(i));
  std::ofstream(folder / "pairs.jsonl") << rows;
  run.data.train = {(folder / "pairs.jsonl").string()};
  run.data.cache = folder / "cache";
  run.data.sequence_length = 40;
  run.train.objective = "dpo";
  run.train.balance_coef = 0;
  return run;
}

io::Dataset dataset_of(const RunConfig& run) {
  return open_dataset(run.data.train, run, model::load_config(run.model.path));
}

// The rows of the first sample, a letter a label: * for <|im_end|>, - where none is trained. Each
// trained one after its completion's number.
std::string marked_labels(const RunConfig& run) {
  const io::Dataset dataset = dataset_of(run);
  io::MicroBatch batch;
  io::SampleScratch scratch;
  const std::int64_t first = 0;
  io::fill_micro_batch(dataset, std::span(&first, 1), batch, scratch);
  std::string marked;
  for (std::size_t i = 0; i < batch.labels.size() && batch.documents[i] >= 0; ++i) {
    EXPECT_EQ(batch.labels[i] >= 0, batch.completions[i] >= 0);
    marked += batch.labels[i] < 0
                  ? std::string("-")
                  : fmt::format("{}{}", batch.completions[i], kLetters[batch.labels[i]]);
  }
  return marked;
}

void write_pairs(const RunConfig& run, const std::string& rows) {
  std::ofstream(run.data.train.front()) << rows;
}

fs::path stored_reference(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".reference") return entry.path();
  return {};
}

// Numbers of one function that programs compute in other orders.
bool are_near(double a, double b) {
  return std::abs(a - b) <= testing::loss_tolerance(b, DType::kFloat32);
}

class Messages : public RunListener {
 public:
  void on_message(Severity /*severity*/, const std::string& text) override { all += text + "\n"; }
  std::string all;
};

std::string messages_of(const RunConfig& run) {
  Messages listener;
  Trainer(run, listener).train();
  return listener.all;
}

TEST(Dpo, TrainsBothCompletionsAndTheirEnds) {
  const TemporaryDirectory folder;
  RunConfig run = dpo_run(folder.path(), 0);
  write_pairs(run, R"({"prompt": "ab ", "chosen": "cd", "rejected": "e"})");
  EXPECT_EQ(marked_labels(run), "--0c0d0*---1e1*-");
  run.data.max_length = 4;
  EXPECT_EQ(marked_labels(run), "--0c---1e-");
  run.data.truncation = "keep_end";
  EXPECT_EQ(marked_labels(run), "0c0d0*--1e1*-");
}

TEST(Dpo, TakesThePromptOfMessagesFromTheTemplate) {
  const TemporaryDirectory folder;
  RunConfig run = dpo_run(folder.path(), 0);
  run.data.sequence_length = 80;
  run.data.chat_template = (folder.path() / "template.jinja").string();
  std::ofstream(run.data.chat_template)
      << "{% for m in messages %}{{ m.role[0] }} {{ m.content }}<|im_end|>{% endfor %}"
         "{% if add_generation_prompt %}a {% endif %}";
  const std::string user = R"({"role": "user", "content": "h"})",
                    good = R"({"role": "assistant", "content": "yes"})",
                    bad = R"({"role": "assistant", "content": "n"})";
  const std::string want = "-----0y0e0s0*------1n1*-";
  write_pairs(
      run, fmt::format(R"({{"prompt": [{}], "chosen": [{}], "rejected": [{}]}})", user, good, bad));
  EXPECT_EQ(marked_labels(run), want);
  write_pairs(run,
              fmt::format(R"({{"chosen": [{0}, {1}], "rejected": [{0}, {2}]}})", user, good, bad));
  EXPECT_EQ(marked_labels(run), want) << "the messages that both begin with are the prompt";
}

TEST(Dpo, RefusesBadPairsByLine) {
  const TemporaryDirectory folder;
  RunConfig run = dpo_run(folder.path(), 0);
  const auto refusal = [&](const std::string& row) {
    write_pairs(run, pair_of(1) + row);
    return testing::message_of([&] { dataset_of(run); });
  };
  EXPECT_THAT(refusal(R"({"prompt": "a", "chosen": "b", "rejected": "b"})"),
              AllOf(HasSubstr("pairs.jsonl:2"), HasSubstr("to differ")));
  EXPECT_THAT(refusal(R"({"prompt": "a", "chosen": "b", "rejected": ""})"),
              HasSubstr("a text in \"rejected\""));
  EXPECT_THAT(refusal(R"({"chosen": "b", "rejected": "c"})"), HasSubstr("\"prompt\""));
  EXPECT_THAT(refusal(R"({"prompt": "a", "chosen": "b"})"), HasSubstr("\"rejected\""));
  EXPECT_THAT(refusal(R"({"prompt": [], "chosen": "b", "rejected": "c"})"),
              HasSubstr("strings or lists"));
  EXPECT_THAT(refusal(R"({"prompt": "a", "completion": "b"})"), HasSubstr("expected a row of"));
  const std::string message = R"([{"role": "user", "content": "a"}])",
                    other = R"([{"role": "user", "content": "b"}])";
  EXPECT_THAT(refusal(fmt::format(R"({{"chosen": {}, "rejected": {}}})", message, other)),
              HasSubstr("both begin with"));
  EXPECT_THAT(refusal(fmt::format(R"({{"prompt": {0}, "chosen": {0}, "rejected": {1}}})", message,
                                  R"([{"role": "user", "content": "b", "weight": 2}])")),
              HasSubstr("no \"weight\""));
}

TEST(Dpo, KeepsKindsOfDataApart) {
  const TemporaryDirectory folder;
  RunConfig run = dpo_run(folder.path(), 4);
  RunConfig sft = run;
  sft.train.objective = "sft";
  EXPECT_THAT(testing::message_of([&] { dataset_of(sft); }),
              HasSubstr("dpo trains on preferences"));
  const fs::path prefix = folder.path() / "made";
  tokenize_files({run.data.train.front()}, prefix, run);
  const std::string want = marked_labels(run);
  run.data.train = {prefix.string()};
  EXPECT_EQ(marked_labels(run), want) << "what tokenize makes is what a run reads";
  sft.data.train = run.data.train;
  EXPECT_THAT(testing::message_of([&] { dataset_of(sft); }), HasSubstr("got pairs"));
  fs::remove(fs::path(prefix) += ".weights");
  EXPECT_THAT(testing::message_of([&] { dataset_of(run); }), HasSubstr("expected preferences"));
}

TEST(Dpo, KeepsPairsWholeInEverySample) {
  const TemporaryDirectory folder;
  const RunConfig run = dpo_run(folder.path(), 100);
  const io::Dataset dataset = dataset_of(run);
  std::vector<std::int64_t> samples{0, 1, 2};
  io::MicroBatch batch;
  io::SampleScratch scratch;
  std::int64_t num_pairs = 0;
  for (std::int64_t sample = 0; sample < dataset.num_samples(); ++sample) {
    const std::span<const io::Row> rows = dataset.rows_of(sample);
    ASSERT_EQ(rows.size() % 2, 0u);
    std::int64_t at = 0;
    for (std::size_t i = 0; i < rows.size(); i += 2) {
      EXPECT_EQ(dataset.locate(sample, at)->document % 2, 0) << "a chosen one comes first";
      EXPECT_EQ(rows[i].begin + rows[i].length, rows[i + 1].begin) << "and its rejected one next";
      at += rows[i].length + rows[i + 1].length;
      ++num_pairs;
    }
  }
  EXPECT_EQ(num_pairs, 100);
  // Numbers go on from sample to sample of a micro-batch.
  io::fill_micro_batch(dataset, samples, batch, scratch);
  std::int32_t last = -1;
  for (const std::int32_t completion : batch.completions) {
    if (completion < 0) continue;
    EXPECT_TRUE(completion == last || completion == last + 1);
    last = completion;
  }
  EXPECT_EQ(last + 1, batch.num_documents);
  EXPECT_EQ(batch.label_weight(), static_cast<double>(batch.num_documents) / 2);
}

TEST(Dpo, RefusesPairsThatNoSampleHolds) {
  const TemporaryDirectory folder;
  RunConfig run = dpo_run(folder.path(), 0);
  run.data.max_length = 21;
  run.parallel.local_ranks = 2;
  run.dpo.loss = "ipo";
  run.dpo.label_smoothing = 0.1;
  const std::vector<std::string> problems = problems_of(run);
  EXPECT_THAT(problems, ::testing::UnorderedElementsAre(
                            HasSubstr("data.max_length: expected at most 20"),
                            HasSubstr("parallel.local_ranks"), HasSubstr("dpo.label_smoothing")));
}

TEST(Dpo, IsOneMeanHoweverAStepIsCut) {
  for (const char* loss : {"sigmoid", "ipo"}) {
    const TemporaryDirectory folder;
    RunConfig run = dpo_run(folder.path(), 40);
    run.dpo.loss = loss;
    run.train.steps = 3;
    run.data.shuffle = false;
    std::vector<std::vector<double>> results;
    for (const std::int64_t micro_batch : {4, 2, 1}) {
      run.train.micro_batch_size = micro_batch;
      run.train.gradient_accumulation_steps = 4 / micro_batch;
      run.train.output = folder.path() / fmt::format("of-{}", micro_batch);
      Trainer(run).train();
      std::vector<double> numbers;
      for (const auto& line : json_lines(fs::path(run.train.output) / "metrics.jsonl"))
        for (const char* name : {"loss", "grad_norm", "margin", "chosen_log_probability"})
          numbers.push_back(line[name]);
      results.push_back(numbers);
    }
    for (const std::vector<double>& other : results)
      for (std::size_t i = 0; i < other.size(); ++i)
        EXPECT_TRUE(are_near(other[i], results[0][i])) << loss << " " << i;
  }
}

TEST(Dpo, LearnsWhatIsPreferred) {
  for (const bool has_adapter : {false, true}) {
    const TemporaryDirectory folder;
    RunConfig run = dpo_run(folder.path(), 200);
    std::string rows;
    for (std::uint64_t i = 1000; i < 1050; ++i) rows += pair_of(i);
    std::ofstream(folder.path() / "held-out.jsonl") << rows;
    run.data.validation = {(folder.path() / "held-out.jsonl").string()};
    run.train.steps = 40;
    run.optimizer.learning_rate = 1e-2;
    if (has_adapter) run.lora.targets = {"attention", "experts"};
    const TrainResult result = Trainer(run).train();
    ASSERT_TRUE(result.before && result.after && result.after->preference);
    EXPECT_TRUE(are_near(result.before->loss, std::log(2)));
    EXPECT_EQ(result.after->preference->pairs, 50);
    EXPECT_GE(result.after->preference->accuracy, 0.9);
    EXPECT_LT(result.after->loss, 0.5 * result.before->loss);
    const TrainResult again = Trainer(run).train();  // complete: it validates alone
    ASSERT_TRUE(again.after);
    EXPECT_EQ(again.after->loss, result.after->loss);
  }
}

TEST(Dpo, GoesOnFromACheckpointToTheBitThoughItsReferenceIsGone) {
  for (const bool has_adapter : {false, true}) {
    const TemporaryDirectory folder;
    RunConfig run = dpo_run(folder.path());
    if (has_adapter) run.lora.targets = {"attention"};
    run.train.steps = 8;
    run.train.save_every = 4;
    run.train.keep_last = 0;
    const std::string want = testing::checkpoint_bytes(Trainer(run).train().checkpoint);
    testing::go_back_to(run.train.output, 4);
    EXPECT_THAT(messages_of(run), HasSubstr("of the same weights and settings"));
    testing::go_back_to(run.train.output, 4);
    fs::remove(stored_reference(folder.path()));
    Messages listener;
    EXPECT_EQ(testing::checkpoint_bytes(Trainer(run, listener).train().checkpoint), want);
    EXPECT_THAT(listener.all, HasSubstr("tokens of data in"));
  }
}

TEST(Dpo, KeepsTheReferenceWhileItsKeyFits) {
  const TemporaryDirectory folder;
  RunConfig run = dpo_run(folder.path());
  run.train.steps = 1;
  const auto again = [&] {
    run.train.output = folder.path() / fmt::format("run-{}", fs::hash_value(run.train.output));
    return messages_of(run);
  };
  const char *made = "tokens of data in", *kept = "of the same weights and settings";
  EXPECT_THAT(again(), HasSubstr(made));
  EXPECT_THAT(again(), AllOf(HasSubstr(kept), Not(HasSubstr(made))));
  run.train.seed = 1;  // of the weights
  EXPECT_THAT(again(), HasSubstr(made));
  EXPECT_THAT(again(), HasSubstr(kept));
  run.train.precision = "bf16";
  EXPECT_THAT(again(), HasSubstr(made));
  run.data.max_length = 10;
  EXPECT_THAT(again(), HasSubstr(made));
  testing::flip_bit(stored_reference(folder.path()), 1);
  EXPECT_THAT(again(), HasSubstr(made));
  run.dpo.reference = "none";
  EXPECT_THAT(again(), Not(HasSubstr("reference")));
}

TEST(Dpo, ComparesCompletionsWithEachOtherWithoutAReference) {
  const TemporaryDirectory folder;
  RunConfig run = dpo_run(folder.path());
  run.dpo.reference = "none";
  run.dpo.length_normalized = true;
  run.dpo.beta = 2;
  run.train.steps = 1;
  Trainer(run).train();
  const auto line = json_lines(folder.path() / "run" / "metrics.jsonl").front();
  const double margin = 2 * (line["chosen_log_probability"].get<double>() -
                             line["rejected_log_probability"].get<double>());
  EXPECT_TRUE(are_near(line["margin"].get<double>(), margin));
  EXPECT_NE(margin, 0);
}

// Rows lie elsewhere in their samples, and the stored values are still the reference's.
TEST(Dpo, TakesAReferenceThatWasMadeInAnotherPacking) {
  for (const char* precision : {"fp32", "bf16"}) {
    const TemporaryDirectory folder;
    RunConfig run = dpo_run(folder.path());
    run.train.precision = precision;
    run.train.steps = 1;
    run.data.max_length = 16;
    Trainer(run).train();
    run.data.sequence_length = 57;
    run.train.micro_batch_size = 3;
    run.train.output = folder.path() / "elsewhere";
    EXPECT_THAT(messages_of(run), AllOf(HasSubstr("of the same weights and settings"),
                                        HasSubstr("stored log-probabilities differ by at most")));
  }
}

// Products of an adapter are rounded apart from those of the weights.
TEST(Dpo, BeginsAtTheReferenceInBf16WithAnyAdapter) {
  for (const char* targets : {"attention", "experts", "router", "all"}) {
    const TemporaryDirectory folder;
    RunConfig run = dpo_run(folder.path());
    run.train.precision = "bf16";
    run.train.steps = 1;
    run.lora.targets = {targets};
    EXPECT_THAT(messages_of(run), HasSubstr("no margin of it is above 0")) << targets;
  }
}

// The values of a stored reference, with its key.
std::pair<std::string, std::vector<float>> read_reference(const fs::path& file) {
  const std::string bytes = read_file(file);
  std::vector<float> values((bytes.size() - 56) / sizeof(float));
  std::memcpy(values.data(), bytes.data() + 56, values.size() * sizeof(float));
  return {bytes.substr(16, 32), values};
}

// An adapter that is not zero, and its base.
RunConfig adapted_run(const fs::path& folder) {
  RunConfig run = dpo_run(folder);
  run.lora.targets = {"attention"};
  run.optimizer.learning_rate = 1e-2;
  run.train.steps = 6;
  const fs::path adapter = Trainer(run).train().checkpoint;
  run.lora = {.from = adapter.string()};
  run.train.output = folder / "from";
  return run;
}

TEST(Dpo, TakesTheReferenceFromBelowTheAdapter) {
  const TemporaryDirectory folder;
  const RunConfig run = adapted_run(folder.path());
  const auto [key, want] = read_reference(stored_reference(folder.path()));
  fs::remove(stored_reference(folder.path()));
  Trainer(run).train();
  EXPECT_EQ(read_reference(stored_reference(folder.path())), std::pair(key, want));
  const auto lines = json_lines(folder.path() / "from" / "metrics.jsonl");
  EXPECT_GT(std::abs(lines.front()["margin"].get<double>()), 0) << "the adapter is not zero";
}

TEST(Dpo, StopsWhereTheStoredReferenceIsAnotherModels) {
  const TemporaryDirectory folder;
  RunConfig run = dpo_run(folder.path());
  run.train.steps = 1;
  Trainer(run).train();
  const fs::path file = stored_reference(folder.path());
  auto [key, values] = read_reference(file);
  for (float& value : values) value *= 1.01f;  // as if of a model that has moved a little
  io::ReferenceFileWriter writer(file, key, std::ssize(values));
  writer.write(0, values);
  writer.finish();
  run.train.output = folder.path() / "again";
  EXPECT_THAT(testing::message_of([&] { Trainer(run).train(); }),
              HasSubstr("the stored reference is not the reference"));
}

TEST(Dpo, StopsWhereTheStartIsNotTheReference) {
  const TemporaryDirectory folder;
  RunConfig run = dpo_run(folder.path());
  Trainer trainer(run);
  const Name name = intern("head.weight");
  const TensorView weight = trainer.session().store().find(name);
  auto* values = reinterpret_cast<float*>(weight.data);
  values[3] += 0.1f;
  trainer.session().refresh_derived();
  EXPECT_THAT(testing::message_of([&] { trainer.train(); }),
              HasSubstr("is not the reference: a pair"));
}

TEST(Dpo, KeepsItsBitsWithStatesOnDisk) {
  const TemporaryDirectory folder;
  RunConfig run = dpo_run(folder.path());
  run.train.precision = "bf16";
  run.train.steps = 4;
  run.train.save_every = 2;
  run.train.keep_last = 0;
  const std::string want = testing::checkpoint_bytes(Trainer(run).train().checkpoint);
  run.train.output = folder.path() / "on-disk";
  run.memory.optimizer_state = run.memory.masters = run.memory.parameters = "disk";
  EXPECT_EQ(testing::checkpoint_bytes(Trainer(run).train().checkpoint), want);
  testing::go_back_to(run.train.output, 2);
  fs::remove(stored_reference(folder.path()));
  EXPECT_EQ(testing::checkpoint_bytes(Trainer(run).train().checkpoint), want);
}

// The loss reads the logits with weights that the scale does not change.
TEST(Dpo, KeepsItsBitsWithAScaledLoss) {
  const TemporaryDirectory folder;
  RunConfig run = dpo_run(folder.path());
  run.train.output = (folder.path() / "plain").string();
  const std::string want = testing::checkpoint_bytes(Trainer(run).train().checkpoint);
  run.train.output = (folder.path() / "scaled").string();
  run.precision.loss_scale = 4096;
  EXPECT_TRUE(testing::checkpoint_bytes(Trainer(run).train().checkpoint) == want);
}

TEST(Dpo, ComparesWithAnotherModel) {
  const TemporaryDirectory folder;
  RunConfig run = dpo_run(folder.path());
  run.train.steps = 4;
  run.train.save_every = 2;
  run.train.keep_last = 0;
  run.optimizer.learning_rate = 1e-2;
  const fs::path other = Trainer(run).train().checkpoint;
  run.dpo.reference = other.string();
  run.train.output = folder.path() / "compared";
  const std::string want = testing::checkpoint_bytes(Trainer(run).train().checkpoint);
  const auto lines = json_lines(folder.path() / "compared" / "metrics.jsonl");
  EXPECT_GT(std::abs(lines.front()["margin"].get<double>()), 0);
  testing::go_back_to(run.train.output, 2);
  EXPECT_EQ(testing::checkpoint_bytes(Trainer(run).train().checkpoint), want);
}

}  // namespace
}  // namespace anabatic::train
