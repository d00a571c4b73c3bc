// SPDX-License-Identifier: Apache-2.0
// Data files as users name them, through the binary: what each is taken for, and what is refused.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>

#include "base/text.h"
#include "io/data/indexed_file.h"
#include "support/run_binary.h"

namespace anabatic::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kText =
    "The quick brown fox jumps over the lazy dog, the cat, the hen and the other dogs.";
const std::string kLines = fmt::format("{{\"text\": \"{}\"}}\n{{\"text\": \"the fox\"}}\n", kText);

class Data : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = write_tiny_config(folder_.path(), "\"vocab_size\": 280");
    succeed({"tokenize", "--train", write("fox.txt", kText), "--vocab_size", "280", "--output",
             model_});
  }

  fs::path write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_.path() / name, std::ios::binary) << content;
    return folder_.path() / name;
  }

  fs::path write_gzip(const std::string& name, const std::string& content) const {
    const fs::path path = folder_.path() / name;
    const gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    gzclose(file);
    return path;
  }

  static Outcome succeed(const std::vector<std::string>& arguments) {
    const Outcome outcome = run_binary(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << arguments.at(0) << ": " << outcome.err;
    return outcome;
  }

  Outcome tokenize(const fs::path& input, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"tokenize", "--model.path",        model_, "--input", input,
                                       "--output", folder_.path() / "out"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_binary(arguments);
  }

  const TemporaryDirectory folder_;
  fs::path model_;
};

TEST_F(Data, TokenizeReadsEveryFormat) {
  const std::string array =
      fmt::format("[\n  {{\"text\": \"{}\"}},\n  {{\"text\": \"the fox\"}}\n]\n", kText);
  for (const fs::path& file :
       {write("A.JSONL", kLines), write("a.jsonl.bak", kLines), write("lines", kLines),
        write("a.json", array), write("array", array), write_gzip("A.Jsonl.GZ", kLines)}) {
    const Outcome outcome = tokenize(file);
    EXPECT_EQ(outcome.exit_code, 0) << file << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("2 documents")) << file;
    EXPECT_THAT(outcome.err, HasSubstr(fmt::format("data: {}: JSON", file.string())));
  }
  const Outcome text = tokenize(write("A.JSONL", kLines), {"--data.format", "text"});
  EXPECT_THAT(text.out, HasSubstr("1 documents"));
}

TEST_F(Data, TokenizeRefusesWhatItCannotRead) {
  fs::remove(folder_.path() / "out.bin");
  EXPECT_THAT(tokenize(write("a.jsonl", kLines + "no JSON\n")).err, HasSubstr("a.jsonl:3: "));
  EXPECT_THAT(tokenize(write("chat", "{\"messages\": [], \"id\": 1}\n")).err,
              HasSubstr("chat:1: expected the field \"text\", which is missing; the object has "
                        "\"id\", \"messages\""));
  EXPECT_THAT(tokenize(write("image", std::string("\x89PNG\0", 5))).err,
              HasSubstr("expected UTF-8 text"));
  EXPECT_THAT(
      tokenize(write("cut.jsonl.gz", read_file(write_gzip("a.gz", kLines)).substr(0, 50))).err,
      HasSubstr("end of the file at byte 50"));
  for (const char* name : {"a.jsonl", "chat", "image", "cut.jsonl.gz"})
    EXPECT_NE(tokenize(folder_.path() / name).exit_code, 0) << name;
  EXPECT_FALSE(fs::exists(folder_.path() / "out.bin"));
}

TEST_F(Data, TokenizerIsTrainedOnTheDocumentsOfJson) {
  const fs::path want = model_ / "tokenizer.json";
  for (const fs::path& file : {write("A.JSONL", fmt::format("{{\"text\": \"{}\"}}\n", kText)),
                               write("a.json", fmt::format("[{{\"text\": \"{}\"}}]", kText)),
                               write("plain", kText), write_gzip("a.txt.gz", kText)}) {
    const fs::path output = folder_.path() / "other";
    succeed({"tokenize", "--train", file, "--vocab_size", "280", "--output", output});
    EXPECT_EQ(read_file(output / "tokenizer.json"), read_file(want)) << file;
  }
  const Outcome outcome =
      run_binary({"tokenize", "--train", write("chat.jsonl", "{\"messages\": []}\n"),
                  "--vocab_size", "280", "--output", folder_.path() / "none"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("chat.jsonl:1: expected the field \"text\""));
}

TEST_F(Data, TrainSaysWhatItTook) {
  const Outcome outcome = succeed({"train",
                                   "--model.path",
                                   model_,
                                   "--model.init",
                                   "random",
                                   "--data.train",
                                   write("A.JSONL", kLines),
                                   write_gzip("more", kLines),
                                   "--data.validation",
                                   write("held", kText),
                                   "--data.sequence_length",
                                   "16",
                                   "--train.steps",
                                   "1",
                                   "--train.micro_batch_size",
                                   "1",
                                   "--train.precision",
                                   "fp32",
                                   "--train.output",
                                   folder_.path() / "run"});
  EXPECT_THAT(outcome.err, HasSubstr("A.JSONL: JSON lines, 2 documents"));
  EXPECT_THAT(outcome.err, HasSubstr("more: JSON lines, by content, gzip, 2 documents"));
  EXPECT_THAT(outcome.err, HasSubstr("held: text, by content, 1 documents"));
}

}  // namespace
}  // namespace anabatic::testing
