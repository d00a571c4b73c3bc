// SPDX-License-Identifier: Apache-2.0
// Broken files with a fixed budget: each gives a clear error or parses, and never asks for more
// memory than a small multiple of its size.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "anabatic/error.h"
#include "base/philox.h"
#include "io/data/dataset.h"
#include "io/safetensors.h"
#include "unit/io/allocations.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

constexpr std::uint64_t kSeed = 20240607;
// The line reader's buffer is 1 MiB, and a string grows by doubling.
constexpr std::size_t kMaxRequest = std::size_t{4} << 20;

// Truncates, flips, overwrites with extreme integers, duplicates or removes a part.
std::string mutate(std::string text, std::uint64_t round) {
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t bound) {
    return static_cast<std::size_t>(random_below(kSeed, round, draw++, bound));
  };
  const std::size_t edits = 1 + below(3);
  for (std::size_t i = 0; i < edits && !text.empty(); ++i) {
    const std::size_t place = below(text.size());
    switch (below(6)) {
      case 0:
        text.resize(place);
        break;
      case 1:
        text[place] = static_cast<char>(text[place] ^ (1 << below(8)));
        break;
      case 2: {
        static constexpr std::uint64_t kExtremes[] = {
            0, 1, 0x7FFFFFFF, 0x80000000, ~0ull, 1ull << 63, (1ull << 63) - 1, 1ull << 40};
        const std::uint64_t value = kExtremes[below(8)];
        std::memcpy(text.data() + place, &value, std::min<std::size_t>(8, text.size() - place));
        break;
      }
      case 3:
        text.insert(place, text.substr(below(text.size()), below(32)));
        break;
      case 4:
        text.erase(place, below(16) + 1);
        break;
      default: {
        static constexpr const char* kWords[] = {
            "99999999999999999999", "-1", "1e308",   "null",
            "[[[[[[[[[[[[",         "\"", "\\u0000", "18446744073709551615"};
        text.insert(place, kWords[below(8)]);
      }
    }
  }
  return text;
}

struct Outcome {
  int good = 0;
  int refused = 0;
};

// Any exception but Error fails the test by leaving it.
template <class Action>
void try_one(Outcome& outcome, std::uint64_t round, Action&& action) {
  reset_largest_allocation();
  try {
    action();
    ++outcome.good;
  } catch (const Error& error) {
    ++outcome.refused;
    EXPECT_GT(std::strlen(error.what()), 10u) << "round " << round;
  }
  EXPECT_LE(largest_allocation_bytes(), kMaxRequest) << "round " << round;
}

TEST(Fuzz, SafetensorsHeader) {
  std::string header =
      R"({"__metadata__":{"format":"pt"},"a.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"c":{"dtype":"U8","shape":[],"data_offsets":[32,33]}})";
  const std::uint64_t size = header.size();
  const std::string whole =
      std::string(reinterpret_cast<const char*>(&size), 8) + header + std::string(33, 'd');
  Outcome outcome;
  for (std::uint64_t round = 0; round < 20000; ++round) {
    const std::string content = mutate(whole, round);
    try_one(outcome, round, [&] {
      for (const TensorEntry& entry :
           parse_safetensors(std::as_bytes(std::span(content)), "fuzz.safetensors")) {
        ASSERT_GE(entry.data.data(), reinterpret_cast<const std::byte*>(content.data()));
        ASSERT_LE(entry.data.data() + entry.data.size(),
                  reinterpret_cast<const std::byte*>(content.data() + content.size()));
      }
    });
  }
  EXPECT_GT(outcome.refused, 10000);
  EXPECT_GT(outcome.good, 100);
}

TEST(Fuzz, SafetensorsIndex) {
  const TempDirectory directory;
  const std::string header = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  const std::uint64_t size = header.size();
  write_text(directory / "s.safetensors",
             std::string(reinterpret_cast<const char*>(&size), 8) + header + "dd");
  const std::string whole =
      R"({"metadata":{"total_size":2},"weight_map":{"a":"s.safetensors","b":"t.safetensors"}})";
  Outcome outcome;
  for (std::uint64_t round = 0; round < 2000; ++round) {
    write_text(directory / "model.safetensors.index.json", mutate(whole, round));
    try_one(outcome, round, [&] { SafetensorsDirectory::open(directory.path()); });
  }
  EXPECT_GT(outcome.refused, 1000);
}

TEST(Fuzz, IndexOfTokens) {
  const TempDirectory directory;
  write_documents(directory / "a", {{1, 2, 3}, {}, {4}, {5, 6, 7, 8, 9}});
  const std::string whole = read_text(directory / "a.idx");
  Outcome outcome;
  for (std::uint64_t round = 0; round < 5000; ++round) {
    write_text(directory / "a.idx", mutate(whole, round));
    try_one(outcome, round, [&] {
      std::vector<TokenFile> files;
      files.push_back({{.path = "a"}, IndexedFile(directory / "a")});
      const Dataset dataset(std::move(files), {.sequence_length = 4, .vocab_size = 1 << 16});
      std::vector<std::vector<std::int32_t>> rows(6, std::vector<std::int32_t>(4));
      SampleScratch scratch;
      for (std::int64_t s = 0; s < dataset.num_samples(); ++s) {
        dataset.read(s, 0, {rows[0], rows[1], rows[2], rows[3], rows[4], rows[5]}, scratch);
        for (std::int64_t i = 0; i < 4; ++i) dataset.locate(s, i);
      }
    });
  }
  EXPECT_GT(outcome.refused, 2500);
  EXPECT_GT(outcome.good, 1);
}

TEST(Fuzz, JsonLines) {
  const TempDirectory directory;
  const std::string whole =
      "{\"text\": \"first \\u00e9 line\"}\n{\"id\": 3, \"text\": \"second\", \"meta\": {\"a\": [1, "
      "2]}}\n"
      "\n{\"text\": \"\"}\n";
  const std::filesystem::path file = directory / "a.jsonl";
  Outcome outcome;
  for (std::uint64_t round = 0; round < 1000; ++round) {
    write_text(file, mutate(whole, round));
    try_one(outcome, round, [&] {
      const DataFile source = detect_format(file, DataFormat::kAuto);
      tokenize_files(std::span(&source, 1), tokenize_bytes, directory / "out",
                     {.vocab_size = 257, .ends = {.suffix = {256}}, .threads = 1});
      IndexedFile{directory / "out"};
    });
  }
  EXPECT_GT(outcome.refused, 200);
  EXPECT_GT(outcome.good, 50);
}

// Whatever a file without a suffix holds is read as something or refused.
TEST(Fuzz, ContentOfDataFiles) {
  const TempDirectory directory;
  const std::array<std::string, 4> contents = {
      "[{\"text\": \"first\"},\n{\"text\": \"\\u00e9\"}]\n",
      "{\n\"text\": \"a\"\n}\n{\"text\": \"b\"}\n", "plain words\n[1] {more}\n",
      gzipped("{\"text\": \"a\"}\n{\"text\": \"b\"}\n") + gzipped("{\"text\": \"c\"}\n")};
  const std::filesystem::path file = directory / "a";
  Outcome outcome;
  for (std::uint64_t round = 0; round < 300; ++round) {
    write_text(file, mutate(contents[round % contents.size()], round));
    try_one(outcome, round, [&] {
      const DataFile source = detect_format(file, DataFormat::kAuto);
      tokenize_files(std::span(&source, 1), tokenize_bytes, directory / "out",
                     {.vocab_size = 257, .ends = {.suffix = {256}}, .threads = 1});
      IndexedFile{directory / "out"};
    });
  }
  EXPECT_GT(outcome.refused, 30);
  EXPECT_GT(outcome.good, 30);
}

}  // namespace
}  // namespace anabatic::io
