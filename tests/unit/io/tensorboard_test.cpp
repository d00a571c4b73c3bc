// SPDX-License-Identifier: Apache-2.0
#include "io/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "io/crc32c.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

using ::testing::HasSubstr;

// RFC 3720, B.4, and the customary check value of the polynomial.
TEST(Crc32c, MatchesKnownAnswers) {
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0})), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xFF})), 0x62A8AB43u);
  EXPECT_EQ(crc32c(std::as_bytes(std::span(std::string_view("123456789")))), 0xE3069283u);
}

TEST(EventWriter, WritesScalarsThatReadBack) {
  const TempDirectory directory;
  EventWriter writer(directory / "events");
  const std::vector<Scalar> first = {{"loss", 2.5}, {"zero", 0.0}};
  writer.write(0, first);
  const std::vector<Scalar> second = {{"loss", -1.0}};
  writer.write(7, second);
  EXPECT_THAT(writer.path().filename().string(), ::testing::StartsWith("events.out.tfevents."));
  const std::vector<ScalarEvent> events = read_events(writer.path());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].tag, "loss");
  EXPECT_EQ(events[0].value, 2.5f);
  EXPECT_EQ(events[0].step, 0);
  EXPECT_EQ(events[1].tag, "zero");
  EXPECT_EQ(events[1].value, 0.0f);
  EXPECT_EQ(events[2].step, 7);
  EXPECT_EQ(events[2].value, -1.0f);
  EXPECT_GT(events[2].wall_time, 1.6e9);
}

TEST(EventWriter, NeverReusesAFile) {
  const TempDirectory directory;
  const EventWriter a(directory.path());
  const EventWriter b(directory.path());
  EXPECT_NE(a.path(), b.path());
}

TEST(ReadEvents, NamesABrokenRecord) {
  const TempDirectory directory;
  EventWriter writer(directory.path());
  const std::vector<Scalar> scalars = {{"loss", 2.5}};
  writer.write(1, scalars);
  const std::string content = read_text(writer.path());
  for (std::size_t i = 0; i < content.size(); ++i) {
    std::string broken = content;
    broken[i] = static_cast<char>(broken[i] ^ 0x10);
    write_text(directory / "broken", broken);
    EXPECT_THAT(error_of([&] { read_events(directory / "broken"); }), HasSubstr("at byte"));
  }
  write_text(directory / "broken", content.substr(0, content.size() - 1));
  EXPECT_THAT(error_of([&] { read_events(directory / "broken"); }), HasSubstr("cut off"));
}

}  // namespace
}  // namespace anabatic::io
