// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "anabatic/error.h"
#include "base/text.h"
#include "io/tokenizer/bpe_trainer.h"
#include "io/tokenizer/special_tokens.h"
#include "io/tokenizer/tokenizer.h"

namespace anabatic::io {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

NextText once(std::string text) {
  return [text = std::move(text), is_done = false](std::string& out) mutable {
    if (is_done) return false;
    is_done = true;
    out = text;
    return true;
  };
}

class TrainerFiles : public ::testing::Test {
 protected:
  TrainerFiles() : folder_(std::filesystem::temp_directory_path() / "anabatic_trainer_test") {
    std::filesystem::create_directories(folder_);
  }
  ~TrainerFiles() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }

  std::filesystem::path folder_;
};

TEST(TrainBpe, MergesTheMostFrequentPairAndTheSmallerIdsOfEquals) {
  const TrainedBpe trained = train_bpe({.vocab_size = 260}, once("abab abab cdcd"));
  ASSERT_EQ(trained.tokens.size(), 260u);
  EXPECT_EQ(trained.tokens[0], "<|endoftext|>");
  EXPECT_EQ(trained.tokens[257], "ab");    // 4 times
  EXPECT_EQ(trained.tokens[258], "cd");    // 2 times, as abab, whose parts have larger ids
  EXPECT_EQ(trained.tokens[259], "abab");  // 2 times
}

TEST(TrainBpe, StopsWhereNothingIsLeftToMerge) {
  const TrainedBpe trained = train_bpe({.vocab_size = 1000}, once("aaaa"));
  EXPECT_EQ(trained.tokens.size(), 259u);
  EXPECT_EQ(trained.merges.size(), 2u);
}

TEST(TrainBpe, RefusesBadOptions) {
  EXPECT_THAT([] { train_bpe({.vocab_size = 256}, once("a")); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected a vocab_size from 257")));
  EXPECT_THROW(train_bpe({.special_tokens = {"a", "a"}}, once("a")), InvalidArgument);
}

TEST_F(TrainerFiles, TheResultDoesNotDependOnThreadsAndLoads) {
  std::string text;
  for (int i = 0; i < 60000; ++i)
    text += "word" + std::to_string(i * 7919 % 3001) + (i % 11 ? " " : ",\n") + "naïve ";
  const std::vector<std::filesystem::path> files{write("a.txt", text),
                                                 write("b.txt", "ünder the sea\n")};
  train_bpe({.vocab_size = 600, .threads = 1}, files, folder_ / "one");
  train_bpe({.vocab_size = 600, .threads = 3}, files, folder_ / "three");
  EXPECT_EQ(read_file(folder_ / "one" / "tokenizer.json"),
            read_file(folder_ / "three" / "tokenizer.json"));
  const Tokenizer tokenizer = Tokenizer::load(folder_ / "one");
  EXPECT_EQ(tokenizer.vocabulary_size(), 600);
  EXPECT_EQ(resolve_special_tokens({.directory = folder_ / "one", .tokenizer = &tokenizer}).eos, 0);
  EXPECT_TRUE(tokenizer.is_special(0));
  const std::string sample = "word12 naïve 😀\n\n<|endoftext|>x";
  const auto ids = tokenizer.encode(sample, false);
  EXPECT_EQ(tokenizer.decode(ids, false), sample);
  EXPECT_LT(ids.size(), sample.size());
}

TEST_F(TrainerFiles, PartsOfAFileJoinToTheFile) {
  std::string text = "start";
  for (int i = 0; i < 400000; ++i) text += i % 9 ? " é中" : "  \n x";
  const NextText next = read_texts({write("long.txt", text), write("empty.txt", "")});
  std::string joined, part;
  int parts = 0;
  while (next(part)) {
    if (parts++ > 0) {
      EXPECT_TRUE(part[0] == '\n' || part[0] == ' ');
    }
    joined += part;
  }
  EXPECT_EQ(joined, text);
  EXPECT_GT(parts, 2);
}

TEST_F(TrainerFiles, NamesFileAndOffsetOfBrokenUtf8) {
  const std::vector<std::filesystem::path> files{
      write("bad.txt", std::string(2'000'000, 'a') + " b\xFF")};
  EXPECT_THAT([&] { train_bpe({.vocab_size = 300}, files, folder_ / "out"); },
              ThrowsMessage<InvalidArgument>(
                  ::testing::AllOf(HasSubstr("bad.txt"), HasSubstr("0xFF at offset 2000002"))));
  EXPECT_THROW(train_bpe({.vocab_size = 300}, std::vector{folder_ / "none"}, folder_ / "out"),
               ResourceError);
}

}  // namespace
}  // namespace anabatic::io
