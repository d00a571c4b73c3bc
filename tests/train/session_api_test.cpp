// SPDX-License-Identifier: Apache-2.0
// anabatic/session.h as a host sees it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "anabatic/plan.h"
#include "anabatic/session.h"
#include "base/text.h"
#include "io/data/loader.h"
#include "support/error_message.h"
#include "support/tiny_run.h"
#include "train/api/step_data.h"
#include "train/convert/convert.h"
#include "train/open_dataset.h"

namespace anabatic {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using train::RunConfig;

class SessionTest : public ::testing::Test {
 protected:
  std::string yaml(const std::function<void(RunConfig&)>& change = {},
                   const std::string& sizes = "") {
    RunConfig run = testing::tiny_run(folder_.path(), sizes);
    run.train.gradient_accumulation_steps = 2;
    if (change) change(run);
    const std::filesystem::path file = folder_.path() / "run.yaml";
    write_file_atomically(file, to_yaml(run));
    return file;
  }

  Sequence sequence(std::int32_t first) const {
    Sequence made;
    for (std::int32_t i = 0; i < 16; ++i) made.tokens.push_back((first + 3 * i) % 97);
    return made;
  }

  std::vector<Sequence> batch(std::int32_t first = 0) const {
    return {sequence(first), sequence(first + 20), sequence(first + 40), sequence(first + 60)};
  }

  TemporaryDirectory folder_;
};

std::vector<float> values_of(const Session& session, const std::string& state) {
  for (const StateInfo& info : session.states())
    if (info.name == state) {
      std::int64_t count = 1;
      for (const std::int64_t size : info.shape) count *= size;
      std::vector<float> values(static_cast<std::size_t>(count));
      session.read(state, 0, values);
      return values;
    }
  return {};
}

TEST_F(SessionTest, TellsWhatInt8ProductsCountAndWhichMasksWereChosen) {
  const std::string file = yaml(
      [](RunConfig& run) {
        run.train.precision = "int8";
        run.sparsity.weights = {{.units = {"experts.down"},
                                 .pattern = spec::SparsityPattern::kTwoOfFour,
                                 .density = 0.5,
                                 .schedule = {.begin = 2, .end = 2}}};
      },
      R"("hidden_size": 64, "intermediate_size": 96)");
  Session session({}, file);
  const StepResult first = session.step(batch(), 1e-2), second = session.step(batch(), 1e-2);
  ASSERT_FALSE(first.int8.empty());
  EXPECT_GT(first.int8[0].largest, 0);
  EXPECT_GT(*first.int8_zeroed, 0);
  EXPECT_LT(*first.int8_zeroed, 0.2);
  EXPECT_LT(*first.int8_fallback, 1);
  EXPECT_TRUE(first.sparsity.empty());
  ASSERT_EQ(second.sparsity.size(), 1u);
  EXPECT_EQ(second.sparsity[0].units, "experts.down");
  EXPECT_EQ(second.sparsity[0].density, 0.5);
  EXPECT_TRUE(second.sparsity[0].is_final);
  // Counts are those of one step.
  Session other({}, file);
  EXPECT_EQ(other.step(batch(), 1e-2).int8[0].zeroed, first.int8[0].zeroed);
  EXPECT_NE(second.int8[0].zeroed, first.int8[0].zeroed);
  Session bf16({}, yaml([](RunConfig& run) { run.train.precision = "bf16"; }));
  const StepResult without = bf16.step(batch(), 1e-2);
  EXPECT_TRUE(without.int8.empty());
  EXPECT_FALSE(without.int8_zeroed);
}

TEST_F(SessionTest, EvaluatesInBf16NextToInt8Products) {
  constexpr const char* kSizes = R"("hidden_size": 64, "intermediate_size": 96)";
  const auto in = [](const char* precision) {
    return [=](RunConfig& run) {
      run.train.precision = precision;
      run.train.save_dtype = "fp32";
    };
  };
  Session session({}, yaml(in("int8"), kSizes));
  session.step(batch(), 1e-2);
  const double loss = session.evaluate(batch()).loss;
  const std::string checkpoint = session.save(folder_.path() / "saved");
  Session bf16({}, yaml(in("bf16"), kSizes));
  bf16.restore(checkpoint);
  EXPECT_EQ(bf16.evaluate(batch()).loss, loss);
  session.step(batch(), 1e-2);
  bf16.restore(session.save(folder_.path() / "saved"));
  EXPECT_EQ(bf16.evaluate(batch()).loss, session.evaluate(batch()).loss);
  EXPECT_NE(bf16.evaluate(batch()).loss, loss);
}

TEST_F(SessionTest, MakesWeightsSparseByTheSchedule) {
  Session session({}, yaml([](RunConfig& run) {
                    run.sparsity.weights = {{.units = {"experts.down"},
                                             .pattern = spec::SparsityPattern::kTwoOfFour,
                                             .density = 0.5,
                                             .schedule = {.begin = 2, .end = 2}}};
                  }));
  for (int i = 1; i <= 3; ++i) {
    session.step(batch(), 1e-2);
    const std::vector<float> values = values_of(session, "layers.0.experts.down.weight");
    EXPECT_EQ(std::ranges::count(values, 0.0f), i < 2 ? 0 : std::ssize(values) / 2);
  }
}

TEST_F(SessionTest, LearnsFromItsHostsData) {
  Session session({}, yaml());
  EXPECT_EQ(session.sequences_per_step(), 4);
  EXPECT_EQ(session.sequence_length(), 16);
  EXPECT_EQ(session.vocabulary(), 97);
  EXPECT_GT(session.plan().peak_memory_bytes, 0);
  EXPECT_TRUE(session.gradient_norms().empty());
  const double before = session.evaluate(batch()).loss;
  StepResult result;
  for (int i = 0; i < 12; ++i) {
    result = session.step(batch(), 1e-2);
    EXPECT_EQ(result.step, i + 1);
    EXPECT_EQ(result.num_labels, 4 * 15);
    EXPECT_EQ(result.experts.size(), 2u);
    double squares = 0;
    for (const GradientNorm& norm : session.gradient_norms()) squares += norm.norm * norm.norm;
    EXPECT_LE(std::abs(std::sqrt(squares) - result.gradient_norm),
              std::numeric_limits<float>::epsilon() * result.gradient_norm);
  }
  EXPECT_EQ(session.num_steps(), 12);
  EXPECT_LT(result.loss, before);
  EXPECT_LT(session.evaluate(batch()).loss, before);
}

TEST_F(SessionTest, HoldsItsOwnEvaluationOfTheStepsData) {
  Session session({}, yaml([](RunConfig& run) { run.train.gradient_accumulation_steps = 1; }));
  const std::vector<Sequence> two{sequence(0), sequence(20)};
  const double loss = session.evaluate(two).loss;
  EXPECT_EQ(session.step(two, 1e-3).loss, loss);
}

TEST_F(SessionTest, SaysWhatItCannotTakeAndChangesNothing) {
  Session session({}, yaml());
  const std::vector<float> before = values_of(session, "norm.weight");
  const auto refusal = [&](std::vector<Sequence> sequences, double rate = 1e-3) {
    return testing::message_of<InvalidArgument>([&] { session.step(sequences, rate); });
  };
  Sequence bad = sequence(0);
  bad.tokens[3] = 97;
  EXPECT_THAT(refusal({sequence(0), bad}),
              HasSubstr("sequence 1, token 3: expected an id in [0, 97), got 97"));
  bad = sequence(0);
  bad.tokens.push_back(1);
  EXPECT_THAT(refusal({bad}), HasSubstr("sequence 0: expected 1 to 16 tokens"));
  EXPECT_THAT(refusal({Sequence{}}), HasSubstr("got 0"));
  bad = sequence(0);
  bad.labels = {1, 2};
  EXPECT_THAT(refusal({bad}), HasSubstr("expected a label for each of 16 tokens"));
  bad.labels.assign(16, -1);
  EXPECT_THAT(refusal({bad}), HasSubstr("label 0: expected an id in [0, 97) or -100, got -1"));
  bad.labels.assign(16, -100);
  EXPECT_THAT(refusal({bad}), HasSubstr("expected a label to learn"));
  bad.labels.clear();
  bad.documents = {10, 7};
  EXPECT_THAT(refusal({bad}), HasSubstr("got one of 7 after 10 tokens"));
  bad.documents = {10};
  EXPECT_THAT(refusal({bad}), HasSubstr("expected documents of 16 tokens in all, got 10"));
  EXPECT_THAT(refusal({}), HasSubstr("expected a label to learn"));
  EXPECT_THAT(refusal(std::vector<Sequence>(5, sequence(0))), HasSubstr("at most 4 sequences"));
  EXPECT_THAT(refusal(batch(), std::numeric_limits<double>::quiet_NaN()),
              HasSubstr("a learning rate of at least 0"));
  EXPECT_THAT(testing::message_of<InvalidArgument>([&] { session.evaluate({}); }),
              HasSubstr("expected a label to evaluate"));
  EXPECT_EQ(session.num_steps(), 0);
  EXPECT_EQ(values_of(session, "norm.weight"), before);
}

TEST_F(SessionTest, GoesOnFromACheckpointBitForBit) {
  for (const char* precision : {"fp32", "bf16"}) {
    const std::string file = yaml([&](RunConfig& run) { run.train.precision = precision; });
    Session session({}, file);
    session.step(batch(), 1e-2);
    const std::string checkpoint = session.save((folder_.path() / precision).string());
    EXPECT_THAT(checkpoint, HasSubstr("step-00000001"));
    const double next = session.step(batch(5), 1e-2).loss;
    const std::vector<float> after = values_of(session, "layers.0.experts.up.weight");
    Session other({{"train.seed", {"9"}}}, file);
    other.step(batch(), 1e-2);
    other.restore(checkpoint);
    EXPECT_EQ(other.num_steps(), 1);
    EXPECT_EQ(other.step(batch(5), 1e-2).loss, next) << precision;
    EXPECT_EQ(values_of(other, "layers.0.experts.up.weight"), after) << precision;
  }
}

TEST_F(SessionTest, AccountsForWhatItRead) {
  Session first({}, yaml());
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "run")) << "nothing was read";
  const std::string source = first.save((folder_.path() / "saved").string());
  const Settings pretrained{{"model.path", {source}}, {"model.init", {"pretrained"}}};
  Session second(pretrained, yaml());
  const train::Manifest manifest = train::read_manifest(folder_.path() / "run");
  EXPECT_EQ(manifest.kind, train::ManifestKind::kImport);
  EXPECT_EQ(manifest.source, source);
  EXPECT_EQ(train::num_elements(manifest.read), model::load_config(source).counts.total);
  EXPECT_TRUE(train::check_manifest(folder_.path() / "run", source, {}).empty());
}

TEST_F(SessionTest, RefusesBrokenCheckpointsAndThoseOfOtherModels) {
  Session session({}, yaml());
  const std::string checkpoint = session.save((folder_.path() / "saved").string());
  EXPECT_THAT(testing::message_of<InvalidArgument>([&] { session.restore("nowhere"); }),
              HasSubstr("expected a whole checkpoint, got nowhere"));
  testing::flip_bit(std::filesystem::path(checkpoint) / "training_state.safetensors", 8);
  EXPECT_THAT(testing::message_of<InvalidArgument>([&] { session.restore(checkpoint); }),
              HasSubstr("expected a whole checkpoint"));
  session.step(batch(), 1e-3);  // still as it was
  TemporaryDirectory elsewhere;
  RunConfig wider = testing::tiny_run(elsewhere.path(), "\"rope_theta\": 500.0");
  const std::string good = session.save((folder_.path() / "good").string());
  Session other({{"model.path", {wider.model.path}}}, yaml());
  EXPECT_THAT(testing::message_of<InvalidArgument>([&] { other.restore(good); }),
              HasSubstr("is of another model"));
}

TEST_F(SessionTest, ReadsAndWritesStatesByName) {
  for (const char* precision : {"fp32", "bf16"}) {
    Session session({}, yaml([&](RunConfig& run) { run.train.precision = precision; }));
    bool has_moment = false;
    for (const StateInfo& info : session.states()) {
      has_moment |= info.role == StateRole::kFirstMoment &&
                    info.parameter == "layers.0.experts.up.weight" &&
                    info.shape == std::vector<std::int64_t>{4, 24, 16};
      EXPECT_NE(info.role, StateRole::kLower);  // part of its parameter
    }
    EXPECT_TRUE(has_moment);
    const double loss = session.evaluate(batch()).loss;
    const std::vector<float> ones(16, 1.25f);
    const std::vector<float> whole = values_of(session, "norm.weight");
    session.write("norm.weight", 0, ones);
    EXPECT_THAT(values_of(session, "norm.weight"), Each(1.25f));
    EXPECT_NE(session.evaluate(batch()).loss, loss);
    session.write("norm.weight", 0, whole);
    EXPECT_EQ(session.evaluate(batch()).loss, loss);
    const std::string matrix = "layers.1.experts.down.weight";
    std::vector<float> part(7);
    session.read(matrix, 100, part);
    session.write(matrix, 100, std::vector<float>(7, 0.1f));
    EXPECT_NE(session.evaluate(batch()).loss, loss) << precision;
    session.write(matrix, 100, part);
    EXPECT_EQ(session.evaluate(batch()).loss, loss) << precision;
    EXPECT_THAT(testing::message_of<InvalidArgument>([&] { session.read("norm", 0, part); }),
                HasSubstr("expected the name of a state"));
    EXPECT_THAT(
        testing::message_of<InvalidArgument>([&] { session.read("norm.weight", 10, part); }),
        HasSubstr("expected elements within 16, got [10, 17)"));
  }
}

TEST_F(SessionTest, RefusesABudgetThatNoPlanKeeps) {
  const std::string file = yaml();
  try {
    Session({{"memory.budget", {"1MB"}}}, file);
    FAIL() << "expected a BudgetError";
  } catch (const BudgetError& error) {
    EXPECT_FALSE(error.refusal().consumers.empty());
    EXPECT_THAT(std::string(error.what()), HasSubstr(error.refusal().reason));
  }
  const PlanOutcome refused = plan_step({{"memory.budget", {"1MB"}}}, file);
  ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
  EXPECT_GT(std::get<Refusal>(refused).smallest_bytes, 1000000);
  const PlanOutcome planned = plan_step({}, file);
  ASSERT_TRUE(std::holds_alternative<PlannedStep>(planned));
  EXPECT_GT(std::get<PlannedStep>(planned).summary.peak_memory_bytes, 0);
}

// A sequence with documents is a sample of a file with these documents.
TEST(StepData, IsWhatFilesOfTheSameTokensGive) {
  TemporaryDirectory folder;
  RunConfig run = testing::tiny_run(folder.path());
  const model::ModelConfig config = model::load_config(run.model.path);
  const io::Dataset dataset = train::open_dataset(run.data.train, run, config);
  const std::int64_t samples[] = {0, dataset.num_samples() - 1};
  io::MicroBatch want;
  io::SampleScratch scratch;
  io::fill_micro_batch(dataset, samples, want, scratch);
  std::vector<Sequence> sequences(2);
  for (std::size_t row = 0; row < want.tokens.size(); ++row) {
    if (want.documents[row] < 0) continue;
    Sequence& sequence = sequences[row / 16];
    if (want.positions[row] == 0) sequence.documents.push_back(0);
    ++sequence.documents.back();
    sequence.tokens.push_back(want.tokens[row]);
  }
  const std::int32_t pad =
      config.eos_token_ids.empty() ? 0 : static_cast<std::int32_t>(config.eos_token_ids.front());
  io::StepBatch step = train::make_step(
      sequences, {.sequence_length = 16, .micro_batch_size = 2, .vocabulary = 97, .pad_id = pad});
  ASSERT_EQ(step.micro_batches.size(), 1u);
  io::MicroBatch& got = step.micro_batches[0];
  // A file's last token of a sample may have its label in the next one.
  for (std::size_t row = 15; row < want.labels.size(); row += 16) {
    want.unmasked_tokens -= want.labels[row] != io::kIgnoredLabel;
    want.labels[row] = io::kIgnoredLabel;
  }
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.labels, want.labels);
  EXPECT_EQ(got.positions, want.positions);
  EXPECT_EQ(got.key_begin, want.key_begin);
  EXPECT_EQ(got.key_end, want.key_end);
  EXPECT_EQ(got.documents, want.documents);
  EXPECT_EQ(got.unmasked_tokens, want.unmasked_tokens);
  EXPECT_EQ(got.real_tokens, want.real_tokens);
  EXPECT_EQ(got.num_documents, want.num_documents);
}

}  // namespace
}  // namespace anabatic
