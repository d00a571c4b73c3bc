// SPDX-License-Identifier: Apache-2.0
#include "spec/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "anabatic/error.h"
#include "base/text.h"

namespace anabatic::spec {
namespace {

using ::testing::FloatEq;
using ::testing::HasSubstr;
using ::testing::Pointwise;

struct Golden {
  std::string name;
  std::int64_t length = 0;
  Rope rope{};
  RopeFrequencies want{};
};

// Lines of rope_golden.txt: "case NAME length=N FIELD=VALUE ...", "scale X", "inverse X ...".
std::vector<Golden> read_golden() {
  std::istringstream lines(
      read_file(std::string(ANABATIC_SOURCE_DIR) + "/tests/unit/spec/rope_golden.txt"));
  std::vector<Golden> goldens;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "case") {
      Golden& golden = goldens.emplace_back();
      words >> golden.name;
      Attributes attributes = to_attributes(Rope{});
      while (words >> word) {
        const auto equals = word.find('=');
        attributes[word.substr(0, equals)] = parse_attribute(word.substr(equals + 1));
      }
      golden.length = get_int(attributes, "length");
      golden.rope = rope_from_attributes(attributes);
    } else if (word == "scale") {
      words >> goldens.back().want.scale;
    } else if (word == "inverse") {
      for (float value = 0; words >> value;) goldens.back().want.inverse.push_back(value);
    }
  }
  return goldens;
}

// Both sides round each of a handful of fp32 steps; the library's FloatEq allows 4 ULPs.
TEST(RopeFrequencies, MatchTransformersForEveryVariant) {
  std::set<std::string> variants;
  for (const Golden& golden : read_golden()) {
    SCOPED_TRACE(golden.name);
    variants.insert(golden.rope.variant);
    const RopeFrequencies got = rope_frequencies(golden.rope, golden.length);
    EXPECT_THAT(got.inverse, Pointwise(FloatEq(), golden.want.inverse));
    EXPECT_THAT(got.scale, FloatEq(golden.want.scale));
    EXPECT_EQ(got.inverse.size(), static_cast<std::size_t>(golden.rope.rotary_dim / 2));
  }
  EXPECT_THAT(variants, ::testing::ElementsAre("default", "dynamic", "linear", "llama3", "yarn"));
}

TEST(RopeFrequencies, OnlyDynamicLooksAtTheLength) {
  for (const Golden& golden : read_golden()) {
    const bool same =
        rope_frequencies(golden.rope, 16).inverse == rope_frequencies(golden.rope, 100000).inverse;
    EXPECT_EQ(same, golden.rope.variant != "dynamic") << golden.name;
  }
}

TEST(RopeFrequencies, RefuseUnknownVariantsAndOddWidths) {
  EXPECT_THROW(rope_frequencies({.variant = "longrope", .rotary_dim = 8}, 1), InvalidArgument);
  EXPECT_THROW(rope_frequencies({.rotary_dim = 7}, 1), InvalidArgument);
  EXPECT_THROW(rope_frequencies({.rotary_dim = 0}, 1), InvalidArgument);
}

TEST(RopeAttributes, RoundTripEveryField) {
  const Rope rope{.variant = "yarn",
                  .rotary_dim = 96,
                  .theta = 5e5,
                  .factor = 4.5,
                  .max_position = 8192,
                  .original_max_position = 2048,
                  .attention_factor = 0.9,
                  .beta_fast = 30,
                  .beta_slow = 2,
                  .mscale = 1.1,
                  .mscale_all_dim = 0.7,
                  .low_freq_factor = 1.5,
                  .high_freq_factor = 3.5,
                  .truncate = false};
  EXPECT_EQ(rope_from_attributes(to_attributes(rope)), rope);
}

TEST(RopeAttributes, NameMissingAndMistypedFields) {
  const auto error_of = [](const Attributes& attributes) -> std::string {
    try {
      rope_from_attributes(attributes);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  Attributes attributes = to_attributes(Rope{});
  attributes["theta"] = std::int64_t{10000};
  EXPECT_THAT(error_of(attributes), HasSubstr("'theta' has the wrong kind: 10000"));
  attributes.erase("theta");
  EXPECT_THAT(error_of(attributes), HasSubstr("expected attribute 'theta', got none"));
}

}  // namespace
}  // namespace anabatic::spec
