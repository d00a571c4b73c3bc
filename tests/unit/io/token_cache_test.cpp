// SPDX-License-Identifier: Apache-2.0
#include "io/data/token_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "anabatic/error.h"
#include "io/data/token_files.h"
#include "support/scoped_variable.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

namespace fs = std::filesystem;
using anabatic::testing::ScopedVariable;
using ::testing::HasSubstr;

const TokenizeOptions kOptions = {.vocab_size = 300, .ends = {.suffix = {256}}};

TEST(OpenTokenFiles, TokenisesTextOnceUntilSomethingChanges) {
  const TempDirectory directory;
  write_text(directory / "a.txt", "abc");
  write_documents(directory / "b", {{1, 2}});
  std::atomic<int> calls = 0;
  const Tokenize count = [&](std::string_view chunk, bool begins, std::vector<std::int32_t>& ids) {
    ++calls;
    tokenize_bytes(chunk, begins, ids);
  };
  const std::vector<std::filesystem::path> files = {directory / "b.bin", directory / "a.txt",
                                                    directory / "b", directory / "b.idx"};
  const auto open = [&](const std::string& fingerprint) {
    return open_token_files(detect_formats(files, DataFormat::kAuto), count, kOptions,
                            CacheDirectory::at(directory / "cache", "data.cache"), fingerprint);
  };
  const std::vector<TokenFile> first = open("one");
  ASSERT_EQ(first.size(), 4u);
  EXPECT_EQ(first[1].tokens.num_tokens(), 4);
  EXPECT_EQ(first[1].source.path, files[1]);
  EXPECT_EQ(first[2].tokens.num_tokens(), 2);
  EXPECT_EQ(calls, 1);
  open("one");
  EXPECT_EQ(calls, 1);
  open("two");
  EXPECT_EQ(calls, 2);
  write_text(directory / "a.txt", "abcd");
  EXPECT_EQ(open("two")[1].tokens.num_tokens(), 5);
  EXPECT_EQ(calls, 3);
}

TEST(OpenTokenFiles, TokenisesOnceForRunsThatShareACache) {
  const TempDirectory directory;
  write_text(directory / "a.txt", std::string(3 << 20, 'a'));
  std::atomic<int> documents = 0;
  const Tokenize count = [&](std::string_view chunk, bool begins, std::vector<std::int32_t>& ids) {
    documents += begins ? 1 : 0;
    tokenize_bytes(chunk, begins, ids);
  };
  const std::vector<std::filesystem::path> files = {directory / "a.txt"};
  std::vector<std::thread> runs;
  std::atomic<std::int64_t> tokens = 0;
  for (int i = 0; i < 4; ++i) {
    runs.emplace_back([&] {
      tokens += open_token_files(detect_formats(files, DataFormat::kAuto), count, kOptions,
                                 CacheDirectory::at(directory / "cache", "data.cache"), "")[0]
                    .tokens.num_tokens();
    });
  }
  for (std::thread& run : runs) run.join();
  EXPECT_EQ(documents, 1);
  EXPECT_EQ(tokens, 4 * ((3 << 20) + 1));
}

// Opens FOLDER/a.txt through FOLDER/cache and counts how often it is tokenised.
class TokenCache : public ::testing::Test {
 protected:
  Documents open(const TokenizeOptions& options = kOptions) {
    const std::vector<fs::path> files = {directory_ / "a.txt"};
    const Tokenize count = [&](std::string_view chunk, bool begins,
                               std::vector<std::int32_t>& ids) {
      ++calls_;
      tokenize_bytes(chunk, begins, ids);
    };
    const auto opened =
        open_token_files(detect_formats(files, DataFormat::kAuto), count, options,
                         CacheDirectory::at(directory_ / "cache", "data.cache"), "tokenizer");
    ids_ = *opened[0].ids;
    return documents_of(opened[0].tokens);
  }

  fs::path entry() const {
    fs::path found;
    for (const auto& item : fs::directory_iterator(directory_ / "cache")) {
      EXPECT_TRUE(found.empty()) << "one entry and nothing else: " << item.path();
      found = item.path();
    }
    return found;
  }

  TempDirectory directory_;
  int calls_ = 0;
  IdRange ids_;
};

TEST_F(TokenCache, SeesOtherContentOfEqualSizeAndTime) {
  const fs::path file = directory_ / "a.txt";
  write_text(file, "first");
  const auto time = fs::last_write_time(file);
  EXPECT_EQ(open(), (Documents{{'f', 'i', 'r', 's', 't', 256}}));
  write_text(file, "other");
  fs::last_write_time(file, time);
  EXPECT_EQ(open(), (Documents{{'o', 't', 'h', 'e', 'r', 256}}));
  EXPECT_EQ(calls_, 2);
}

TEST_F(TokenCache, KnowsContentUnderAnotherNameAndTime) {
  write_text(directory_ / "a.txt", "words");
  open();
  fs::rename(directory_ / "a.txt", directory_ / "b.txt");
  write_text(directory_ / "a.txt", "words");
  fs::last_write_time(directory_ / "a.txt", fs::file_time_type::min() + std::chrono::hours(1));
  open();
  EXPECT_EQ(calls_, 1);
  EXPECT_EQ(ids_.min, 'd');
  EXPECT_EQ(ids_.max, 256);
}

TEST_F(TokenCache, DependsOnWhatTheIdsFollowFrom) {
  write_text(directory_ / "a.txt", "words");
  open();
  TokenizeOptions options = kOptions;
  options.threads = 3;
  open(options);
  EXPECT_EQ(calls_, 1) << "threads change nothing";
  options.ends.suffix = {};
  EXPECT_EQ(open(options), (Documents{{'w', 'o', 'r', 'd', 's'}}));
  options = kOptions;
  options.ends.suffix = {257};
  open(options);
  EXPECT_EQ(calls_, 3);
}

TEST_F(TokenCache, MakesADamagedEntryAnew) {
  write_text(directory_ / "a.txt", "words");
  const Documents want = open();
  int damages = 0;
  for (const char* name : {"tokens.bin", "tokens.idx", "manifest.json"}) {
    const std::string whole = read_text(entry() / name);
    std::string flipped = whole;
    flipped[whole.size() / 2] ^= 1;
    for (const std::string& damaged : {whole.substr(0, whole.size() / 2), flipped, std::string()}) {
      write_text(entry() / name, damaged);
      EXPECT_EQ(open(), want) << name;
      EXPECT_EQ(calls_, 1 + ++damages) << name;
    }
    fs::remove(entry() / name);
    EXPECT_EQ(open(), want) << name;
    EXPECT_EQ(calls_, 1 + ++damages) << name;
  }
  // An entry of other ids that is whole in itself, under this name.
  std::string manifest = read_text(entry() / "manifest.json");
  const std::size_t digit = manifest.find("\"largest_id\": 256") + 14;
  manifest[digit] = '1';
  write_text(entry() / "manifest.json", manifest);
  open();
  EXPECT_EQ(ids_.max, 256);
}

TEST_F(TokenCache, LeavesNothingOfATokenizationThatFails) {
  write_text(directory_ / "a.txt", "words");
  TokenizeOptions options = kOptions;
  options.vocab_size = 20;
  options.ends.suffix = {2};
  EXPECT_THAT(error_of([&] { open(options); }), HasSubstr("the tokenizer gave the id 119"));
  EXPECT_TRUE(fs::is_empty(directory_ / "cache"));
  // What a run that was killed leaves.
  open();
  const fs::path made = entry();
  fs::rename(made, fs::path(made) += ".partial");
  write_text(fs::path(made) += ".lock", "");
  open();
  EXPECT_EQ(entry(), made);
}

TEST(CacheDirectory, IsTheUsersAlone) {
  const TempDirectory directory;
  const ScopedVariable variable("XDG_CACHE_HOME", directory / "xdg");
  const auto made = CacheDirectory::of_user("tokens");
  EXPECT_EQ(made->path(), directory / "xdg/anabatic/tokens");
  EXPECT_FALSE(made->is_temporary());
  EXPECT_EQ(fs::status(directory / "xdg/anabatic").permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(made->path()).permissions(), fs::perms::owner_all);
  write_text(made->path() / "kept", "");
  EXPECT_TRUE(fs::exists(CacheDirectory::of_user("tokens")->path() / "kept"));

  // A folder that others may write to, or that is another user's, is not trusted.
  fs::permissions(directory / "xdg/anabatic", fs::perms::all);
  const auto other = CacheDirectory::of_user("tokens");
  EXPECT_TRUE(other->is_temporary());
  EXPECT_EQ(fs::status(other->path()).permissions(), fs::perms::owner_all);
  fs::permissions(directory / "xdg/anabatic", fs::perms::owner_all);
  EXPECT_FALSE(CacheDirectory::of_user("tokens")->is_temporary());
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown((directory / "xdg/anabatic").c_str(), 1, 1), 0);
    EXPECT_TRUE(CacheDirectory::of_user("tokens")->is_temporary());
  }
}

TEST(CacheDirectory, IsTemporaryWhereTheUserHasNone) {
  const TempDirectory directory;
  write_text(directory / "file", "");
  for (const std::string& cache :
       {(directory / "file" / "sub").string(), std::string("relative")}) {
    const ScopedVariable variable("XDG_CACHE_HOME", cache);
    fs::path path;
    {
      const auto made = CacheDirectory::of_user("tokens");
      path = made->path();
      EXPECT_TRUE(made->is_temporary()) << cache;
      EXPECT_TRUE(fs::is_directory(path));
    }
    EXPECT_FALSE(fs::exists(path));
  }
  EXPECT_THAT(error_of([&] { CacheDirectory::at(directory / "file" / "sub", "data.cache"); }),
              HasSubstr("data.cache: expected a folder"));
}

}  // namespace
}  // namespace anabatic::io
