// SPDX-License-Identifier: Apache-2.0
#include "io/gguf_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/io/gguf_bytes.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::byte> bytes_of(std::size_t size, int value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

const BlockType* type_of(const char* name) { return find_block_type(std::string_view(name)); }

GgufKeys small_keys() {
  GgufKeys keys;
  keys.add_text("general.architecture", "llama");
  keys.add_integer("u8", GgufType::kUInt8, 255);
  keys.add_integer("i64", GgufType::kInt64, INT64_MIN);
  keys.add_integer("u64", GgufType::kUInt64, INT64_MAX);
  keys.add_float("f32", 1e-5f);
  keys.add_bool("bool", true);
  keys.add_integers("i32s", GgufType::kInt32, std::vector<std::int64_t>{-1, 7});
  keys.add_floats("f32s", std::vector<float>{0.5f});
  keys.add_texts("texts", std::vector<std::string_view>{"a", "", "\xE2\x96\x81"});
  return keys;
}

std::vector<GgufTensorInfo> small_tensors() {
  return {{"a", type_of("Q8_0"), {2, 64}}, {"b", type_of("F32"), {3}}, {"c", type_of("F16"), {}}};
}

void write_small(GgufWriter& writer) {
  writer.write("c", bytes_of(2, 3));
  writer.write("a", bytes_of(100, 1));
  writer.write("b", bytes_of(12, 2));
  writer.write("a", bytes_of(36, 1));
}

TEST(GgufWriter, WritesWhatTheReaderReads) {
  for (const std::int64_t alignment : {8, 32, 4096}) {
    const TempDirectory directory;
    GgufWriter writer(directory / "a.gguf", small_keys(), small_tensors(), alignment);
    write_small(writer);
    writer.finish();
    const GgufFiles files = GgufFiles::open(directory / "a.gguf");
    EXPECT_EQ(files.num_bytes(), writer.num_bytes());
    EXPECT_EQ(files.num_bytes() % alignment, 0);
    EXPECT_EQ(files.metadata().integer("general.alignment").value_or(32), alignment);
    EXPECT_EQ(files.metadata().text("general.architecture"), "llama");
    EXPECT_EQ(files.metadata().integer("u8"), 255);
    EXPECT_EQ(files.metadata().integer("i64"), INT64_MIN);
    EXPECT_EQ(files.metadata().integer("u64"), INT64_MAX);
    EXPECT_EQ(files.metadata().number("f32"), static_cast<double>(1e-5f));
    EXPECT_EQ(files.metadata().boolean("bool"), true);
    EXPECT_THAT(*files.metadata().integers("i32s"), ElementsAre(-1, 7));
    EXPECT_THAT(*files.metadata().numbers("f32s"), ElementsAre(0.5));
    EXPECT_THAT(*files.metadata().texts("texts"), ElementsAre("a", "", "\xE2\x96\x81"));
    const GgufTensor& a = *files.find("a");
    EXPECT_THAT(a.shape, ElementsAre(2, 64));
    EXPECT_THAT(a.data, ::testing::Each(std::byte{1}));
    EXPECT_THAT(files.find("b")->data, ::testing::Each(std::byte{2}));
    EXPECT_THAT(files.find("c")->data, ::testing::Each(std::byte{3}));
  }
}

// Keys and tensors of a file by hand, copied, make the same bytes.
TEST(GgufWriter, CopiesAFileByteForByte) {
  const TempDirectory directory;
  std::string whole = small_gguf().join();
  whole.resize((whole.size() + 31) / 32 * 32);
  write_text(directory / "a.gguf", whole);
  const GgufFiles files = GgufFiles::open(directory / "a.gguf");
  GgufKeys keys;
  for (const auto& [key, value] : files.metadata().entries()) keys.add(key, value);
  std::vector<GgufTensorInfo> infos;
  for (const auto& [name, tensor] : files.tensors())
    infos.push_back({name, tensor.type, tensor.shape});
  GgufWriter writer(directory / "b.gguf", std::move(keys), std::move(infos));
  for (const auto& [name, tensor] : files.tensors()) writer.write(name, tensor.data);
  writer.finish();
  EXPECT_EQ(read_text(directory / "b.gguf"), whole);
}

TEST(GgufWriter, GivesTheNameOnlyToAWholeFile) {
  const TempDirectory directory;
  {
    GgufWriter writer(directory / "a.gguf", small_keys(), small_tensors());
    writer.write("a", bytes_of(100, 1));
    EXPECT_TRUE(std::filesystem::exists(directory / "a.gguf.partial"));
    EXPECT_THAT(error_of([&] { writer.finish(); }),
                AllOf(HasSubstr("a: 100 of 136"), HasSubstr("b: 0 of 12"), HasSubstr("c: 0 of 2")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  GgufWriter writer(directory / "a.gguf", {}, {});
  std::filesystem::remove(directory / "a.gguf.partial");
  EXPECT_THAT(error_of([&] { writer.finish(); }), HasSubstr("a.gguf"));
  EXPECT_THAT(error_of([&] { GgufWriter("/nowhere/a.gguf", {}, {}); }),
              HasSubstr("/nowhere/a.gguf"));
}

TEST(GgufWriter, RefusesDeclarationsThatTheFormatCannotHave) {
  const TempDirectory directory;
  const auto error = [&](std::vector<GgufTensorInfo> tensors, std::int64_t alignment = 32) {
    return error_of([&] { GgufWriter(directory / "a.gguf", {}, std::move(tensors), alignment); });
  };
  EXPECT_THAT(error({{"a", type_of("F32"), {1}}, {"a", type_of("F32"), {1}}}),
              HasSubstr("tensor a: is declared twice"));
  EXPECT_THAT(error({{"a", type_of("Q8_0"), {32, 33}}}),
              HasSubstr("tensor a: expected rows of whole blocks of 32"));
  EXPECT_THAT(error({{"a", type_of("F32"), {1, 1, 1, 1, 1}}}),
              HasSubstr("tensor a: expected at most 4 dimensions"));
  EXPECT_THAT(error({{"a", type_of("F32"), {std::int64_t{1} << 40, std::int64_t{1} << 40}}}),
              HasSubstr("fit 62 bits"));
  EXPECT_THAT(error({{"a", type_of("F32"), {-1}}}), HasSubstr("tensor a: expected"));
  EXPECT_THAT(error({}, 24), HasSubstr("a power of two, got 24"));
  GgufKeys keys = small_keys();
  EXPECT_THAT(error_of([&] { keys.add_bool("bool", false); }),
              HasSubstr("bool: is declared twice"));
  EXPECT_THAT(error_of([&] { keys.add_integer("x", GgufType::kUInt8, 256); }),
              HasSubstr("key x: 256 is no u8"));
  EXPECT_THAT(error_of([&] { keys.add_integer("y", GgufType::kUInt64, -1); }),
              HasSubstr("key y: -1 is no u64"));
  EXPECT_THAT(error_of([&] { keys.add_integer("z", GgufType::kFloat32, 1); }),
              HasSubstr("key z: 1 is no f32"));
  keys = {};
  keys.add_integer("general.alignment", GgufType::kUInt32, 64);
  EXPECT_THAT(error_of([&] { GgufWriter(directory / "a.gguf", keys, {}); }),
              HasSubstr("general.alignment"));
  GgufWriter writer(directory / "a.gguf", {}, small_tensors());
  EXPECT_THAT(error_of([&] { writer.write("x", {}); }), HasSubstr("tensor x: was not declared"));
  EXPECT_THAT(error_of([&] { writer.write("b", bytes_of(13, 0)); }),
              HasSubstr("tensor b: expected 12 bytes in all, got 13 after 0"));
}

}  // namespace
}  // namespace anabatic::io
