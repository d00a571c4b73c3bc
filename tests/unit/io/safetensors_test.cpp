// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "anabatic/error.h"
#include "base/json.h"
#include "io/safetensors_writer.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header +
         std::string(data_bytes, '\0');
}

std::string parse_error(const std::string& content) {
  return error_of([&] { parse_safetensors(std::as_bytes(std::span(content)), "a.safetensors"); });
}

std::string header_error(const std::string& header, std::size_t data_bytes) {
  return parse_error(file_of(header, data_bytes));
}

std::vector<std::byte> iota_bytes(std::size_t size, int first) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(static_cast<std::size_t>(first) + i);
  }
  return bytes;
}

TEST(Safetensors, ReadsNameTypeShapeAndData) {
  const std::string content = file_of(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[4,6]},)"
      R"("a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]},)"
      R"("s":{"dtype":"F32","shape":[],"data_offsets":[6,10]},)"
      R"("e":{"dtype":"I64","shape":[3,0],"data_offsets":[10,10]}}   )",
      10);
  const auto entries = parse_safetensors(std::as_bytes(std::span(content)), "a.safetensors");
  ASSERT_EQ(entries.size(), 4u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[0].dtype, DType::kBFloat16);
  EXPECT_EQ(entries[0].shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(entries[0].data.size(), 4u);
  EXPECT_EQ(entries[1].dtype, std::nullopt);
  EXPECT_EQ(entries[1].dtype_name, "F8_E4M3");
  EXPECT_EQ(entries[2].num_elements(), 0);
  EXPECT_EQ(entries[3].num_elements(), 1);
}

TEST(Safetensors, NamesWhatIsWrongInAHeader) {
  EXPECT_THAT(parse_error("1234567"), HasSubstr("at least 8 bytes"));
  EXPECT_THAT(parse_error(std::string("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F{}", 10)),
              HasSubstr("at most 100000000 bytes"));
  EXPECT_THAT(parse_error(file_of("{}", 0).substr(0, 9)), HasSubstr("claims 2 bytes"));
  EXPECT_THAT(header_error("[]", 0), HasSubstr("expected a JSON object"));
  EXPECT_THAT(header_error("{\"a\":", 0), HasSubstr("bad JSON header"));
  EXPECT_THAT(header_error("{\"a\":" + std::string(5000, '[') + std::string(5000, ']') + "}", 0),
              HasSubstr("nested"));
  EXPECT_THAT(header_error(R"({"a":5})", 0), HasSubstr("a: expected an object"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F32","shape":[1]}})", 4), HasSubstr("data_offsets"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4),
              HasSubstr("unknown dtype F33"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4),
              HasSubstr("non-negative"));
  EXPECT_THAT(
      header_error(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})",
                   4),
      HasSubstr("overflows"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
              HasSubstr("expected 8 bytes for F32 [2], got 4"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4),
              HasSubstr("begin <= end"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3),
              HasSubstr("data_offsets end at 4"));
  EXPECT_THAT(header_error(R"({"__metadata__":{"a":1}})", 0), HasSubstr("object of strings"));
}

TEST(Safetensors, RefusesGapsOverlapsAndDoubleNames) {
  const std::string a = R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  EXPECT_EQ(header_error("{" + a + "}", 2), "");
  EXPECT_THAT(header_error("{" + a + "}", 3), HasSubstr("holds 3 data bytes"));
  EXPECT_THAT(header_error("{" + a + R"(,"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3),
              HasSubstr("without gap or overlap"));
  EXPECT_THAT(header_error("{" + a + R"(,"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})", 4),
              HasSubstr("expected its data at offset 2, got 3"));
  EXPECT_THAT(header_error("{" + a + "," + a + "}", 2), HasSubstr("a appears twice"));
}

TEST(Safetensors, ListsAllProblemsAtOnce) {
  EXPECT_THAT(
      header_error(R"({"a":{"dtype":"F33","shape":[],"data_offsets":[0,4]},"b":1,"c":[]})", 4),
      AllOf(HasSubstr("3 problems"), HasSubstr("a: unknown"), HasSubstr("b: expected"),
            HasSubstr("c: expected")));
}

const std::vector<TensorInfo> kTensors = {{"w1", DType::kBFloat16, {3}},
                                          {"w2", DType::kFloat32, {2, 2}},
                                          {"w3", DType::kUInt8, {0, 5}},
                                          {"w4", DType::kFloat64, {1}}};

void write_all(SafetensorsWriter& writer) {
  writer.write("w4", iota_bytes(8, 40));
  writer.write("w2", iota_bytes(7, 20));
  writer.write("w1", iota_bytes(6, 10));
  writer.write("w2", iota_bytes(9, 27));
  writer.finish();
}

void expect_all(const SafetensorsDirectory& directory) {
  EXPECT_EQ(directory.names(), (std::vector<std::string>{"w1", "w2", "w3", "w4"}));
  const auto bytes = [&](const char* name) {
    const auto data = directory.find(name)->data;
    return std::vector<std::byte>(data.begin(), data.end());
  };
  EXPECT_EQ(bytes("w1"), iota_bytes(6, 10));
  EXPECT_EQ(bytes("w2"), iota_bytes(16, 20));
  EXPECT_EQ(bytes("w3"), iota_bytes(0, 0));
  EXPECT_EQ(bytes("w4"), iota_bytes(8, 40));
  for (const TensorInfo& info : kTensors) {
    EXPECT_EQ(directory.find(info.name)->dtype, info.dtype);
    EXPECT_EQ(directory.find(info.name)->shape, info.shape);
  }
  EXPECT_EQ(directory.find("w5"), nullptr);
}

TEST(SafetensorsWriter, RoundTripsOneFile) {
  const TempDirectory directory;
  SafetensorsWriter writer(directory.path(), kTensors);
  write_all(writer);
  expect_all(SafetensorsDirectory::open(directory.path()));
  expect_all(SafetensorsDirectory::open(directory / "model.safetensors"));
  const std::string content = read_text(directory / "model.safetensors");
  EXPECT_EQ(content[0] % 8, 0) << "the data begins aligned";
  EXPECT_THAT(content, HasSubstr(R"({"__metadata__":{"format":"pt"},"w4":)"));
  EXPECT_FALSE(std::filesystem::exists(directory / "model.safetensors.index.json"));
}

TEST(SafetensorsWriter, RoundTripsShardsWithAnIndex) {
  const TempDirectory directory;
  SafetensorsWriter writer(directory.path(), kTensors, {.max_shard_bytes = 22});
  write_all(writer);
  expect_all(SafetensorsDirectory::open(directory.path()));
  const auto index = parse_json(read_text(directory / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 30);
  EXPECT_EQ(index["weight_map"]["w2"], "model-00001-of-00002.safetensors");
  EXPECT_EQ(index["weight_map"]["w4"], "model-00002-of-00002.safetensors");
}

TEST(SafetensorsWriter, GivesALargeTensorItsOwnShard) {
  const TempDirectory directory;
  SafetensorsWriter writer(directory.path(), kTensors, {.max_shard_bytes = 1, .stem = "state"});
  write_all(writer);
  EXPECT_TRUE(std::filesystem::exists(directory / "state-00003-of-00003.safetensors"));
  expect_all(SafetensorsDirectory::open(directory.path(), "state"));
}

TEST(SafetensorsWriter, WritesASingleNamedFile) {
  const TempDirectory directory;
  SafetensorsWriter writer =
      SafetensorsWriter::single_file(directory / "out.safetensors", kTensors);
  write_all(writer);
  expect_all(SafetensorsDirectory::open(directory / "out.safetensors"));
}

TEST(SafetensorsWriter, RefusesWrongDeclarationsAndIncompleteTensors) {
  const TempDirectory directory;
  EXPECT_THAT(error_of([&] {
                SafetensorsWriter(directory.path(), {{"a", DType::kInt8, {1}}, {"a"}});
              }),
              HasSubstr("a is declared twice"));
  EXPECT_THAT(error_of([&] {
                SafetensorsWriter(directory.path(), {{"a", DType::kInt8, {-1}}});
              }),
              HasSubstr("expected a shape"));
  SafetensorsWriter writer(directory.path(), kTensors);
  EXPECT_THAT(error_of([&] { writer.write("x", {}); }), HasSubstr("not declared"));
  EXPECT_THAT(error_of([&] { writer.write("w1", iota_bytes(7, 0)); }),
              HasSubstr("w1: expected 6 bytes in all, got 7 after 0"));
  writer.write("w1", iota_bytes(5, 0));
  EXPECT_THAT(error_of([&] { writer.finish(); }),
              AllOf(HasSubstr("w1: 5 of 6"), HasSubstr("w2: 0 of 16"), HasSubstr("w4: 0 of 8")));
}

// Resident bytes of this process in its mapping of a file.
std::int64_t resident_bytes_of(const std::string& file) {
  std::ifstream maps("/proc/self/smaps");
  bool is_of_file = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("-p ") != std::string::npos || line.find("-s ") != std::string::npos ||
        line.find("r--") != std::string::npos)
      is_of_file = line.ends_with(file);
    if (is_of_file && line.starts_with("Rss:")) return std::stoll(line.substr(4)) * 1024;
  }
  return -1;
}

// The system maps pages around each one that is read: after a block, and before it if those were
// given back before.
TEST(SafetensorsDirectory, GivesBackWhatWasRead) {
  const TempDirectory folder;
  constexpr std::size_t kBytes = std::size_t{16} << 20, kBlock = 137'000;
  const TensorInfo info{"x", DType::kUInt8, {static_cast<std::int64_t>(kBytes)}};
  SafetensorsWriter writer = SafetensorsWriter::single_file(folder / "x.safetensors", {info});
  writer.write("x", std::vector<std::byte>(kBytes, std::byte{1}));
  writer.finish();
  const SafetensorsDirectory directory = SafetensorsDirectory::open(folder / "x.safetensors");
  std::span<const std::byte> data = directory.find("x")->data;
  std::size_t sum = 0;
  while (!data.empty()) {
    const auto block = data.first(std::min(kBlock, data.size()));
    for (const std::byte byte : block) sum += static_cast<std::size_t>(byte);
    directory.release(block);
    data = data.subspan(block.size());
  }
  EXPECT_EQ(sum, kBytes);
  const std::int64_t left = resident_bytes_of("x.safetensors");
  EXPECT_GE(left, 0);
  EXPECT_LE(left, 128 << 10);
}

TEST(SafetensorsDirectory, ListsMissingShardsAndTensors) {
  const TempDirectory directory;
  write_text(directory / "one.safetensors",
             file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2));
  write_text(directory / "two.safetensors",
             file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2));
  write_text(directory / "bad.safetensors", "?");
  write_text(directory / "model.safetensors.index.json",
             R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors","c":"none.safetensors",)"
             R"("d":"../e.safetensors","f":"two.safetensors","g":"bad.safetensors","h":7}})");
  EXPECT_THAT(
      error_of([&] { SafetensorsDirectory::open(directory.path()); }),
      AllOf(HasSubstr("b is not in one.safetensors"), HasSubstr("none.safetensors is missing"),
            HasSubstr("../e.safetensors is missing"),
            HasSubstr("a is both in one.safetensors and in two.safetensors"),
            HasSubstr("at least 8 bytes"), HasSubstr("h: expected the name of a shard")));
}

TEST(SafetensorsDirectory, NamesBothWaysWhenNothingIsThere) {
  const TempDirectory directory;
  EXPECT_THAT(error_of([&] { SafetensorsDirectory::open(directory.path()); }),
              AllOf(HasSubstr("model.safetensors or model.safetensors.index.json")));
  write_text(directory / "model.safetensors.index.json", "{\"weight_map\": [");
  EXPECT_THAT(error_of([&] { SafetensorsDirectory::open(directory.path()); }),
              HasSubstr("bad JSON"));
  write_text(directory / "model.safetensors.index.json", "{}");
  EXPECT_THAT(error_of([&] { SafetensorsDirectory::open(directory.path()); }),
              HasSubstr("weight_map"));
}

}  // namespace
}  // namespace anabatic::io
