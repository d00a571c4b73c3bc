// SPDX-License-Identifier: Apache-2.0
#include "spec/attributes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "anabatic/error.h"
#include "base/philox.h"
#include "spec/execution.h"

namespace anabatic::spec {
namespace {

using ::testing::HasSubstr;

TEST(Attributes, TextRoundTripsEveryKind) {
  const std::vector<Attribute> values{true,
                                      false,
                                      std::int64_t{0},
                                      std::numeric_limits<std::int64_t>::min(),
                                      std::numeric_limits<std::int64_t>::max(),
                                      0.0,
                                      1.0,
                                      1e-5,
                                      -1.5e300,
                                      std::numeric_limits<double>::denorm_min(),
                                      std::numeric_limits<double>::infinity(),
                                      -std::numeric_limits<double>::infinity(),
                                      std::string(),
                                      std::string("a \"b\" \\ c\n{}, [1]"),
                                      std::vector<std::int64_t>{},
                                      std::vector<std::int64_t>{-1, 0, 7}};
  for (const Attribute& value : values) {
    EXPECT_EQ(parse_attribute(to_string(value)), value) << to_string(value);
    EXPECT_EQ(parse_attribute(to_string(value)).index(), value.index()) << to_string(value);
  }
}

TEST(Attributes, DoublesOfRandomBitsRoundTrip) {
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const double value = std::bit_cast<double>(random_bits(7, 0, i));
    if (std::isnan(value)) continue;
    EXPECT_EQ(std::get<double>(parse_attribute(to_string(Attribute(value)))), value);
  }
}

TEST(Attributes, ZeroKeepsItsSignAndNanStaysNan) {
  EXPECT_EQ(to_string(Attribute(-0.0)), "-0.0");
  EXPECT_TRUE(std::signbit(std::get<double>(parse_attribute("-0.0"))));
  EXPECT_EQ(to_string(Attribute(std::nan(""))), "nan");
  EXPECT_TRUE(std::isnan(std::get<double>(parse_attribute("nan"))));
}

TEST(Attributes, ParserRefusesWhatPrinterNeverWrites) {
  for (const char* text :
       {"", "tru", "1.2.3", "1e999", "99999999999999999999", "\"open", "open\"", "\"end\\\"", "[1",
        "[1,]", "[,]", "[1.5]", "[[1]]", "--1", "0x10", "1 2"})
    EXPECT_THROW(parse_attribute(text), InvalidArgument) << text;
}

TEST(Attributes, ReadersNameKeyAndKind) {
  const Attributes attributes{{"heads", std::int64_t{4}}, {"name", std::string("x")}};
  EXPECT_EQ(get_int(attributes, "heads"), 4);
  EXPECT_EQ(get_string(attributes, "name"), "x");
  EXPECT_EQ(get_int_or(attributes, "groups", 9), 9);
  EXPECT_EQ(get_double_or(attributes, "epsilon", 0.5), 0.5);
  EXPECT_TRUE(get_bool_or(attributes, "causal", true));
  const auto error_of = [&](auto&& read) -> std::string {
    try {
      read();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of([&] { get_double(attributes, "heads"); }),
              HasSubstr("expected a number for 'heads', got 4"));
  EXPECT_THAT(error_of([&] { get_bool(attributes, "causal"); }),
              HasSubstr("expected 'causal' (a bool), got none"));
  EXPECT_THAT(error_of([&] { get_bool_or(attributes, "name", true); }),
              HasSubstr("expected a bool for 'name', got \"x\""));
}

TEST(Action, HasANameEach) {
  EXPECT_EQ(to_string(Action::kForward), "forward");
  EXPECT_EQ(to_string(Action::kBackward), "backward");
  EXPECT_EQ(to_string(Action::kUpdate), "update");
}

}  // namespace
}  // namespace anabatic::spec
