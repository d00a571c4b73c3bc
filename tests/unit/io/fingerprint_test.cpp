// SPDX-License-Identifier: Apache-2.0
#include "io/data/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <atomic>

#include "anabatic/error.h"
#include "io/parallel.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

using ::testing::HasSubstr;

void put_byte(const std::filesystem::path& path, std::int64_t offset, char byte) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(offset);
  file.put(byte);
}

TEST(Fingerprint, SeesEveryByteOfASmallFile) {
  const TempDirectory directory;
  const auto file = directory / "a.txt";
  std::string text(1000, 'a');
  write_text(file, text);
  const FileFingerprint first = fingerprint(file);
  EXPECT_EQ(first.path, file);
  EXPECT_EQ(first.bytes, 1000);
  EXPECT_EQ(first.hash.size(), 32u);
  for (const std::size_t place : {0, 500, 999}) {
    std::string other = text;
    other[place] = 'b';
    write_text(directory / "b.txt", other);
    EXPECT_FALSE(fingerprint(directory / "b.txt").has_same_content(first)) << place;
  }
  write_text(directory / "b.txt", text);
  EXPECT_TRUE(fingerprint(directory / "b.txt").has_same_content(first));
  write_text(directory / "b.txt", "");
  EXPECT_EQ(fingerprint(directory / "b.txt").bytes, 0);
}

TEST(Fingerprint, SeesHeadTailAndSizeOfALargeFile) {
  const TempDirectory directory;
  const auto file = directory / "a.bin";
  write_text(file, "");
  const std::int64_t size = (std::int64_t{1} << 30) + 12345;
  std::filesystem::resize_file(file, static_cast<std::uintmax_t>(size));
  const FileFingerprint zeros = fingerprint(file);
  for (const std::int64_t place : {std::int64_t{0}, std::int64_t{60000}, size - 60000, size - 1}) {
    put_byte(file, place, 'x');
    EXPECT_FALSE(fingerprint(file).has_same_content(zeros)) << place;
    put_byte(file, place, '\0');
    EXPECT_TRUE(fingerprint(file).has_same_content(zeros)) << place;
  }
  std::filesystem::resize_file(file, static_cast<std::uintmax_t>(size + 1));
  EXPECT_FALSE(fingerprint(file).has_same_content(zeros));
}

TEST(Fingerprint, TakesBothFilesOfAPair) {
  const TempDirectory directory;
  write_documents(directory / "a", {{1, 2}});
  write_text(directory / "t.txt", "abc");
  const std::array<std::filesystem::path, 2> files = {directory / "a", directory / "t.txt"};
  const auto all = data_fingerprints(files);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].path, directory / "a.bin");
  EXPECT_EQ(all[1].path, directory / "a.idx");
  EXPECT_EQ(all[2].path, directory / "t.txt");
}

TEST(Fingerprint, NamesWhatCannotBeRead) {
  const TempDirectory directory;
  EXPECT_THAT(error_of([&] { fingerprint(directory / "none"); }), HasSubstr("none"));
  EXPECT_THAT(error_of([&] { fingerprint(directory.path()); }), HasSubstr("expected a file"));
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { content_hash(directory / "pipe", 2); }), HasSubstr("expected a file"));
}

TEST(ContentHash, IsOfAllBytesForAnyThreadCount) {
  const TempDirectory directory;
  const auto file = directory / "a.bin";
  std::string text(static_cast<std::size_t>(9) << 20, 'a');
  for (std::size_t i = 0; i < text.size(); i += 4099) text[i] = static_cast<char>(i / 4099);
  write_text(file, text);
  const std::string hash = content_hash(file, 1);
  EXPECT_EQ(content_hash(file, 3), hash);
  EXPECT_EQ(content_hash(file, 64), hash);
  for (const std::int64_t place : {std::int64_t{5} << 20, (std::int64_t{8} << 20) + 777}) {
    put_byte(file, place, '\x7f');
    EXPECT_NE(content_hash(file, 2), hash) << place;
    put_byte(file, place, text[static_cast<std::size_t>(place)]);
  }
  EXPECT_EQ(content_hash(file, 2), hash);
}

TEST(ParallelTasks, RethrowTheErrorOfTheLowestTask) {
  for (const int threads : {1, 2, 5}) {
    std::atomic<int> done = 0;
    parallel_tasks(100, threads, [&](std::int64_t) { ++done; });
    EXPECT_EQ(done, 100);
    EXPECT_THAT(error_of([&] {
                  parallel_tasks(1000, threads, [&](std::int64_t task) {
                    if (task >= 10) throw InvalidArgument(std::to_string(task));
                  });
                }),
                "10");
  }
}

}  // namespace
}  // namespace anabatic::io
