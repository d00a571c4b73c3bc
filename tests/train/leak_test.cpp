// SPDX-License-Identifier: Apache-2.0
// Packed documents do not see each other, and a planted leak is named.
#include "train/proof/leak.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "support/tiny_run.h"
#include "train/open_dataset.h"
#include "train/ranks/ranks.h"
#include "train/trainer.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using testing::tiny_run;

struct Listener : RunListener {
  void on_message(Severity, const std::string& text) override { messages += text + "\n"; }
  std::string messages;
};

class Leak : public ::testing::Test {
 protected:
  // A run whose samples hold several documents each.
  RunConfig packed_run(const std::string& extra = "", const std::string& precision = "fp32") {
    RunConfig run = tiny_run(folder_.path(), extra);
    run.data.sequence_length = 64;
    run.train.precision = precision;
    return run;
  }

  io::MicroBatch first_batch(const RunConfig& run, ModelSession& session) {
    const io::Dataset dataset = open_dataset(run.data.train, run, session.config());
    return io::Loader(dataset, loader_options(run, {})).load_step(0).micro_batches[0];
  }

  // A row in the middle of the second document sees the last token of the first one from there on.
  static void plant(io::MicroBatch& batch) {
    const std::vector<std::int32_t> documents = number_documents(batch);
    const auto row = static_cast<std::size_t>(std::find(documents.begin(), documents.end(), 1) -
                                              documents.begin());
    for (std::size_t i = row; i < documents.size() && documents[i] == 1; ++i) --batch.key_begin[i];
  }

  TemporaryDirectory folder_;
};

TEST_F(Leak, NoDocumentSeesAnother) {
  for (const std::string& extra :
       {std::string(), std::string(R"("sliding_window": 5)"),
        std::string(R"("tie_word_embeddings": true)"), testing::kTinyLatent, testing::kTinySinks})
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(extra + " in " + precision);
      const LeakReport report = check_leak(packed_run(extra, precision));
      EXPECT_EQ(report.leak, "");
      EXPECT_GE(report.documents, 4);
      EXPECT_GE(report.rounds, 4);
    }
}

TEST_F(Leak, APlantedLeakIsNamed) {
  const RunConfig run = packed_run();
  ModelSession session(run, false);
  io::MicroBatch batch = first_batch(run, session);
  const auto program = bind_leak_program(session, std::ssize(batch.tokens));
  session.load_parameters();
  session.refresh_derived();
  plant(batch);
  const LeakReport report = find_leak(*program, batch, session.config().spec.vocab_size);
  EXPECT_THAT(report.leak,
              HasSubstr("(document 1, its token 0) change with the tokens of document 0"));
}

TEST_F(Leak, AJobStopsAtAPlantedLeak) {
  for (const char* precision : {"fp32", "bf16"}) {
    const RunConfig run = packed_run("", precision);
    ModelSession session(run, false);
    io::MicroBatch batch = first_batch(run, session);
    const auto program = bind_training(session);
    session.load_parameters();
    session.refresh_derived();
    EXPECT_GE(require_no_leak(*program, batch, session.config().spec.vocab_size), 2);
    plant(batch);
    EXPECT_THROW(require_no_leak(*program, batch, session.config().spec.vocab_size), InternalError);
  }
}

TEST_F(Leak, RunsWithAJobAndChangesNothing) {
  RunConfig run = packed_run();
  run.train.steps = 2;
  Listener checked, unchecked;
  const double loss = Trainer(run, checked).train().loss;
  EXPECT_THAT(checked.messages, HasSubstr("keep their loss when the tokens of the others change"));
  run.train.check_leak = "off";
  run.train.resume = "never";
  EXPECT_EQ(Trainer(run, unchecked).train().loss, loss);
  EXPECT_THAT(unchecked.messages, Not(HasSubstr("keep their loss")));
}

TEST_F(Leak, NeedsPackedSamples) {
  RunConfig run = packed_run();
  run.data.packing = "concatenated";
  EXPECT_THROW(check_leak(run), InvalidArgument);
  run = packed_run();
  run.data.sequence_length = 4;
  run.train.steps = 1;
  run.train.micro_batch_size = 1;
  EXPECT_THROW(check_leak(run), InvalidArgument);
}

}  // namespace
}  // namespace anabatic::train
