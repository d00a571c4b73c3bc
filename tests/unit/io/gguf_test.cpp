// SPDX-License-Identifier: Apache-2.0
#include "io/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "unit/io/gguf_bytes.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GgufContents parse(const std::string& content) {
  return parse_gguf(std::as_bytes(std::span(content)), "a.gguf");
}

std::string parse_error(const std::string& content) {
  return error_of([&] { parse(content); });
}

std::string parse_error(const GgufBytes& file) { return parse_error(file.join()); }

TEST(Gguf, ReadsTensorsOutermostDimensionFirst) {
  const std::string content = small_gguf().join();
  const GgufContents contents = parse(content);
  EXPECT_EQ(contents.version, 3u);
  EXPECT_EQ(contents.alignment, 32);
  ASSERT_EQ(contents.tensors.size(), 3u);
  const GgufTensor& a = contents.tensors[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.type->name, "Q8_0");
  EXPECT_THAT(a.shape, ElementsAre(2, 64));
  EXPECT_EQ(a.num_elements(), 128);
  EXPECT_EQ(a.data.size(), 136u);
  EXPECT_EQ(*a.file, "a.gguf");
  const GgufTensor& c = contents.tensors[2];
  EXPECT_TRUE(c.shape.empty());
  EXPECT_EQ(c.data.size(), 2u);
  EXPECT_EQ(c.data[0], std::byte{'c'});
  EXPECT_EQ(c.offset + 2, static_cast<std::int64_t>(content.size()));
}

TEST(Gguf, ReadsMetadataByType) {
  GgufBytes file = small_gguf();
  file.add<std::int64_t>("i64", 11, -5);
  file.add<std::uint64_t>("u64", 10, ~0ull);
  file.add<double>("f64", 12, 0.5);
  file.add_array("f32s", 6, 1, little_endian(2.5f));
  const std::string content = file.join();
  const GgufMetadata metadata = parse(content).metadata;
  EXPECT_EQ(metadata.entries().size(), 10u);
  EXPECT_EQ(metadata.text("general.architecture"), "llama");
  EXPECT_EQ(metadata.integer("llama.block_count"), 2);
  EXPECT_EQ(metadata.number("llama.block_count"), 2.0);
  EXPECT_EQ(metadata.number("llama.rope.freq_base"), 10000.0);
  EXPECT_EQ(metadata.boolean("tokenizer.ggml.add_bos_token"), true);
  EXPECT_THAT(*metadata.texts("tokenizer.ggml.tokens"), ElementsAre("a", "bc"));
  EXPECT_THAT(*metadata.integers("tokenizer.ggml.token_type"), ElementsAre(1, -3));
  EXPECT_THAT(*metadata.numbers("f32s"), ElementsAre(2.5));
  EXPECT_EQ(metadata.integer("i64"), -5);
  EXPECT_EQ(metadata.number("f64"), 0.5);
  EXPECT_EQ(metadata.integer("absent"), std::nullopt);
  EXPECT_THAT(error_of([&] { metadata.integer("u64"); }),
              AllOf(HasSubstr("a.gguf"), HasSubstr("u64: expected an integer below 2^63")));
  EXPECT_THAT(error_of([&] { metadata.integer("general.architecture"); }),
              HasSubstr("key general.architecture: expected an integer, got string"));
  EXPECT_THAT(error_of([&] { metadata.text("tokenizer.ggml.tokens"); }),
              HasSubstr("expected a string, got an array of string"));
}

TEST(Gguf, KeepsToTheAlignmentOfTheFile) {
  GgufBytes file = small_gguf();
  file.alignment = 8;
  file.add<std::uint32_t>("general.alignment", 4, 8);
  file.tensors[1].offset = 136;
  file.tensors[2].offset = 152;
  file.data = std::string(136 + 16 + 2, 'x') + std::string(6, '\0');
  const std::string content = file.join();
  EXPECT_EQ(parse(content).alignment, 8);
  file.entries.back() = gguf_string("general.alignment") + little_endian<std::uint32_t>(4) +
                        little_endian<std::uint32_t>(24);
  EXPECT_THAT(parse_error(file), HasSubstr("general.alignment: expected a power of two"));
}

// Every beginning of a file is refused, with a message that names it.
TEST(Gguf, RefusesFilesCutShort) {
  const std::string content = small_gguf().join();
  for (std::size_t size = 0; size < content.size(); ++size) {
    const std::string error = parse_error(content.substr(0, size));
    ASSERT_THAT(error, HasSubstr("a.gguf")) << size;
  }
  EXPECT_THAT(parse_error(content.substr(0, content.size() - 1)),
              HasSubstr("tensor c: cut short: expected 2 bytes"));
  EXPECT_THAT(parse_error(content.substr(0, 110)), HasSubstr("key 2: cut short at byte 110"));
}

TEST(Gguf, RefusesOtherFilesAndVersions) {
  EXPECT_THAT(parse_error("GGML" + std::string(60, '\0')), HasSubstr("is it a GGUF file?"));
  GgufBytes file = small_gguf();
  file.version = 1;
  EXPECT_THAT(parse_error(file), HasSubstr("expected version 2 or 3, got 1"));
  file.version = 3u << 24;
  EXPECT_THAT(parse_error(file), HasSubstr("big-endian"));
}

TEST(Gguf, ListsTensorsThatDoNotFit) {
  GgufBytes file = small_gguf();
  file.tensors[1].offset = 128;
  EXPECT_THAT(parse_error(file), HasSubstr("tensor b: offset 128 overlaps the tensor before it"));
  file.tensors[1].offset = 164;
  EXPECT_THAT(parse_error(file), HasSubstr("tensor b: offset 164 is not a multiple"));
  file.tensors[1].offset = 160;
  file.tensors[2].offset = 224;
  EXPECT_THAT(parse_error(file), HasSubstr("tensor c: expected offset 192"));
  file = small_gguf();
  file.data += std::string(100, '\0');
  EXPECT_THAT(parse_error(file), HasSubstr("the last tensor ends at byte"));
  file = small_gguf();
  file.tensors[0].type = 5;
  file.tensors[1].type = 99;
  file.tensors[2].name = "b";
  EXPECT_THAT(parse_error(file),
              AllOf(HasSubstr("3 problems"), HasSubstr("tensor a: unknown type 5"),
                    HasSubstr("tensor b: unknown type 99"), HasSubstr("tensor b: appears twice")));
}

TEST(Gguf, RefusesShapes) {
  GgufBytes file = small_gguf();
  file.tensors[0].dimensions = {33, 2};
  EXPECT_THAT(parse_error(file), HasSubstr("tensor a: expected rows of whole blocks of 32"));
  file.tensors[0].dimensions = {1ull << 40, 1ull << 40};
  EXPECT_THAT(parse_error(file), HasSubstr("overflows"));
  file.tensors[0].dimensions = {~0ull};
  EXPECT_THAT(parse_error(file), HasSubstr("tensor a: expected a size below 2^62"));
  file.tensors[0].dimensions = {32, 1, 1, 1, 1};
  EXPECT_THAT(parse_error(file), HasSubstr("tensor a: expected at most 4 dimensions, got 5"));
}

TEST(Gguf, RefusesKeys) {
  GgufBytes file = small_gguf();
  file.add<std::uint32_t>("llama.block_count", 4, 3);
  EXPECT_THAT(parse_error(file), HasSubstr("key llama.block_count: appears twice"));
  file = small_gguf();
  file.add<std::uint32_t>("k", 13, 3);
  EXPECT_THAT(parse_error(file), HasSubstr("key k: expected a type of values from 0 to 12"));
  file.entries.back() = gguf_string("k") + little_endian<std::uint32_t>(7) + "\2";
  EXPECT_THAT(parse_error(file), HasSubstr("key k: expected bool 0 or 1, got 2"));
  file.entries.pop_back();
  file.add_array("k", 9, 1, "");
  EXPECT_THAT(parse_error(file), HasSubstr("key k: expected an array of numbers or strings"));
  file.entries.pop_back();
  file.add_array("k", 4, ~0ull / 4 + 2, "");
  EXPECT_THAT(parse_error(file), HasSubstr("key k: expected 4611686018427387905 elements"));
  file.entries.pop_back();
  file.add_array("k", 8, 1, little_endian(~0ull));
  EXPECT_THAT(parse_error(file), HasSubstr("key k: cut short"));
}

TEST(Gguf, RefusesCountsBeyondTheFile) {
  std::string content = small_gguf().join();
  const std::uint64_t huge = 1ull << 60;
  content.replace(8, 8, little_endian(huge));
  EXPECT_THAT(parse_error(content), HasSubstr("header: expected 1152921504606846976 tensors"));
  content = small_gguf().join();
  content.replace(16, 8, little_endian(huge));
  EXPECT_THAT(parse_error(content), HasSubstr("header: expected 1152921504606846976 keys"));
}

// Part `part` of two, each with one tensor.
GgufBytes part_of_two(std::uint16_t part, const std::string& tensor) {
  GgufBytes file;
  file.add<std::uint16_t>("split.no", 2, part);
  file.add<std::uint16_t>("split.count", 2, 2);
  file.add<std::int32_t>("split.tensors.count", 5, 2);
  if (part == 0) file.add_text("general.architecture", "llama");
  file.tensors = {{tensor, {2}, 0, 0}};
  file.data = std::string(8, static_cast<char>('0' + part));
  return file;
}

TEST(GgufFiles, ReadsEveryPartOfASplitFile) {
  const TempDirectory directory;
  write_text(directory / "m-00001-of-00002.gguf", part_of_two(0, "a").join());
  write_text(directory / "m-00002-of-00002.gguf", part_of_two(1, "b").join());
  for (const char* name : {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"}) {
    const GgufFiles files = GgufFiles::open(directory / name);
    EXPECT_EQ(files.tensors().size(), 2u);
    EXPECT_EQ(files.metadata().text("general.architecture"), "llama");
    EXPECT_EQ(files.find("a")->data[0], std::byte{'0'});
    EXPECT_EQ(files.find("b")->data[0], std::byte{'1'});
    EXPECT_EQ(files.find("c"), nullptr);
  }
}

TEST(GgufFiles, ListsProblemsOfParts) {
  const TempDirectory directory;
  write_text(directory / "m-00001-of-00002.gguf", part_of_two(0, "a").join());
  const auto open = [&] { GgufFiles::open(directory / "m-00001-of-00002.gguf"); };
  EXPECT_THAT(error_of(open), HasSubstr("m-00002-of-00002.gguf"));
  write_text(directory / "m-00002-of-00002.gguf", part_of_two(0, "a").join());
  EXPECT_THAT(error_of(open),
              AllOf(HasSubstr("expected part 1 of 2 by its name, got split.no 0"),
                    HasSubstr("tensor a: is both in m-00001-of-00002.gguf and in m-00002")));
  GgufBytes second = part_of_two(1, "b");
  second.tensors.clear();
  second.data.clear();
  write_text(directory / "m-00002-of-00002.gguf", second.join());
  EXPECT_THAT(error_of(open), HasSubstr("expected 2 tensors in all"));
  write_text(directory / "one.gguf", part_of_two(0, "a").join());
  EXPECT_THAT(error_of([&] { GgufFiles::open(directory / "one.gguf"); }),
              HasSubstr("one.gguf: expected part 0 of 1 by its name, got split.no 0 and "
                        "split.count 2"));
}

TEST(GgufFiles, KnowsAFileByItsBegin) {
  const TempDirectory directory;
  write_text(directory / "a", small_gguf().join());
  write_text(directory / "b", "GGU");
  EXPECT_TRUE(is_gguf(directory / "a"));
  EXPECT_FALSE(is_gguf(directory / "b"));
  EXPECT_FALSE(is_gguf(directory / "c"));
  EXPECT_FALSE(is_gguf(directory.path()));
  EXPECT_EQ(GgufFiles::open(directory / "a").tensors().size(), 3u);
}

}  // namespace
}  // namespace anabatic::io
