// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/name.h"
#include "base/philox.h"
#include "base/text.h"

namespace anabatic {
namespace {

TEST(Name, EqualTextsGetEqualNames) {
  EXPECT_EQ(intern("experts"), intern(std::string("exp") + "erts"));
  EXPECT_NE(intern("experts"), intern("router"));
  EXPECT_EQ(text(intern("experts")), "experts");
  EXPECT_EQ(intern(""), Name{});
}

// Known-answer vectors of the Random123 distribution (kat_vectors, philox4x32 10).
TEST(Philox, MatchesKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Text, NearestWordSuggestsOnlyNearWords) {
  const std::vector<std::string> keys{"train.steps", "train.seed", "optimizer.learning_rate"};
  EXPECT_EQ(nearest_word("train.step", keys), "train.steps");
  EXPECT_EQ(nearest_word("zzz", keys), std::nullopt);
}

TEST(Text, ParseBytesTakesBothKindsOfUnits) {
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("6GiB"), std::int64_t{6} << 30);
  EXPECT_EQ(parse_bytes("1.5 mib"), 3 << 19);
  EXPECT_EQ(parse_bytes("500MB"), 500'000'000);
  EXPECT_EQ(parse_bytes("0"), 0);
  for (const char* wrong : {"", "GiB", "6G", "-1", "6 GiB x", "1e30", "nan", "0x10", " 6"})
    EXPECT_EQ(parse_bytes(wrong), std::nullopt) << wrong;
}

TEST(Text, AtomicWriteReplacesWholeFile) {
  const auto path = std::filesystem::temp_directory_path() / "anabatic_text_test";
  write_file_atomically(path, "first");
  write_file_atomically(path, "second");
  EXPECT_EQ(read_file(path), "second");
  EXPECT_THROW(read_file(path, 3), ResourceError);
  std::filesystem::remove(path);
  EXPECT_THROW(read_file(path), ResourceError);
}

TEST(Error, CheckEvaluatesOperandsOnlyOnFailure) {
  int evaluated = 0;
  ANABATIC_REQUIRE(true, "[test] {}", ++evaluated);
  EXPECT_EQ(evaluated, 0);
  EXPECT_THROW(ANABATIC_REQUIRE(false, "[test] {}", ++evaluated), InvalidArgument);
  EXPECT_EQ(evaluated, 1);
}

}  // namespace
}  // namespace anabatic
