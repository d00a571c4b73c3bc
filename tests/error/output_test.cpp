// SPDX-License-Identifier: Apache-2.0
// Output that cannot be written: every verb to a full disk, a closed pipe and a closed descriptor,
// and files that appear under their names only when they are whole.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "base/text.h"
#include "io/safetensors_writer.h"
#include "support/file_size_limit.h"
#include "support/run_binary.h"
#include "train/checkpoint/checkpoint_directory.h"

namespace anabatic::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Shell words of the binary's call, ended by a redirection.
int shell(const std::vector<std::string>& arguments, const std::string& redirection,
          const fs::path& err) {
  std::string line = "exec '" ANABATIC_BINARY_DIR "/anabatic'";
  for (const std::string& word : arguments) line += " '" + word + "'";
  return WEXITSTATUS(std::system((line + " " + redirection + " 2>'" + err.string() + "'").c_str()));
}

class Output : public ::testing::Test {
 protected:
  void SetUp() override {
    train::RunConfig run = tiny_run(folder_.path(), "\"vocab_size\": 300");
    run.train.steps = 2;
    std::ofstream(yaml_) << train::to_yaml(run);
    model_ = run.model.path;
    tokens_ = run.data.train[0];
    std::ofstream(text_) << "the cup of tea\nand the cup of coffee\n";
    ASSERT_EQ(run_binary({"tokenize", "--train", text_, "--vocab_size", "260", "--output", model_})
                  .exit_code,
              0);
    write_token_batch();
    ASSERT_EQ(run_binary({"train", yaml_}).exit_code, 0);
    trained_ = folder_.path() / "run" / train::checkpoint_name(2);
  }

  void write_token_batch() const {
    const std::vector<std::int64_t> ids{1, 2, 3, 4};
    auto writer = io::SafetensorsWriter::single_file(
        batch_, {{"input_ids", DType::kInt64, {1, 4}}, {"labels", DType::kInt64, {1, 4}}});
    for (const char* name : {"input_ids", "labels"})
      writer.write(name, std::as_bytes(std::span(ids)));
    writer.finish();
  }

  std::vector<std::vector<std::string>> verbs() const {
    const std::string output = folder_.path() / "fresh";
    return {
        {"--help"},
        {"--version"},
        {"train", "--help"},
        {"info", model_},
        {"info", model_, "--json"},
        {"plan", model_},
        {"plan", model_, "--json"},
        {"doctor", "--device.threads", "1"},
        {"train", yaml_, "--train.output", output},
        {"evaluate", "--model.path", trained_, "--data.validation", tokens_},
        {"evaluate", "--model.path", trained_, "--data.validation", tokens_, "--json"},
        {"generate", "--model.path", trained_, "--prompt", "the", "--generate.max_new_tokens", "5"},
        {"tokenize", "--model.path", model_, "--ids", text_},
        {"tokenize", "--model.path", model_, "--input", text_, "--output", folder_.path() / "t"},
        {"profile", yaml_, "--steps", "1", "--warmup", "0"},
        {"bench", "norm", "--rounds", "1", "--device.threads", "1"}};
  }

  const TemporaryDirectory folder_;
  const fs::path yaml_ = folder_.path() / "run.yaml", text_ = folder_.path() / "text.txt",
                 batch_ = folder_.path() / "batch.safetensors", err_ = folder_.path() / "err";
  std::string model_, tokens_, trained_;
};

TEST_F(Output, ThatCannotBeWrittenIsAnErrorOfEveryVerb) {
  for (const std::vector<std::string>& verb : verbs()) {
    EXPECT_EQ(shell(verb, ">/dev/full", err_), 1) << verb[0] << ": " << read_file(err_);
    EXPECT_THAT(read_file(err_),
                HasSubstr("standard output cannot be written: No space left on device"))
        << verb[0];
  }
  // A run is worth more than its lines.
  EXPECT_TRUE(fs::exists(folder_.path() / "fresh" / train::checkpoint_name(2)));
  for (const std::vector<std::string>& verb : {verbs()[3], verbs()[9]}) {
    EXPECT_EQ(shell(verb, ">&-", err_), 1) << verb[0];
    EXPECT_THAT(read_file(err_), HasSubstr("standard output cannot be written: Bad file"));
  }
}

TEST_F(Output, OfGradientsAppearsWhenItIsWhole) {
  const fs::path out = folder_.path() / "out.safetensors";
  const std::vector<std::string> gradients{"gradients", model_, "--model.init", "random",
                                           "--tokens",  batch_, "--output",     out};
  {
    const FileSizeLimit limit(4096);
    const Outcome outcome = run_binary(gradients);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("File too large"));
  }
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    EXPECT_FALSE(entry.path().filename().string().starts_with("out.safetensors")) << entry.path();
  EXPECT_EQ(run_binary(gradients).exit_code, 0);
  const std::string whole = read_file(out);
  {
    const FileSizeLimit limit(4096);
    EXPECT_EQ(run_binary(gradients).exit_code, 1);
  }
  EXPECT_TRUE(read_file(out) == whole);  // what was there stays
}

TEST_F(Output, ReplacesNoDevice) {
  const auto is_device = [] { return fs::is_character_file("/dev/full"); };
  ASSERT_TRUE(is_device());
  EXPECT_EQ(run_binary({"gradients", model_, "--model.init", "random", "--tokens", batch_,
                        "--output", "/dev/full"})
                .exit_code,
            1);
  const Outcome plan = run_binary({"plan", model_, "--save", "/dev/full"});
  EXPECT_EQ(plan.exit_code, 1);
  EXPECT_THAT(plan.err, HasSubstr("No space left on device"));
  EXPECT_EQ(run_binary({"plan", model_, "--timeline", "/dev/full"}).exit_code, 1);
  EXPECT_EQ(run_binary({"profile", yaml_, "--trace", "/dev/full"}).exit_code, 1);
  EXPECT_TRUE(is_device());
}

TEST_F(Output, OfPlansAndTracesAppearsWhenItIsWhole) {
  const FileSizeLimit limit(64);
  EXPECT_EQ(run_binary({"plan", model_, "--save", folder_.path() / "plan.json"}).exit_code, 1);
  EXPECT_EQ(run_binary({"plan", model_, "--timeline", folder_.path() / "plan.svg"}).exit_code, 1);
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    EXPECT_FALSE(entry.path().filename().string().starts_with("plan.")) << entry.path();
}

}  // namespace
}  // namespace anabatic::testing
