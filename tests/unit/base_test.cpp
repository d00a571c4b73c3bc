// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/json_edit.h"
#include "base/json_node.h"
#include "base/log.h"
#include "base/name.h"
#include "base/philox.h"
#include "base/rounding.h"
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

TEST(Rounding, GoesUpToTheNextMultiple) {
  static_assert(ceil_div(0, 8) == 0 && ceil_div(1, 8) == 1 && ceil_div(8, 8) == 1);
  static_assert(round_up(9, 8) == 16 && round_up(16, 8) == 16 && round_up(0, 3) == 0);
  static_assert(std::is_same_v<decltype(round_up(std::int64_t{1}, 2)), std::int64_t>);
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

TEST(Text, BytesAreWrittenInTheUnitOfAnotherTextAndNeverTooFew) {
  EXPECT_EQ(unit_of_bytes("1800MB"), "MB");
  EXPECT_EQ(unit_of_bytes("1.5 GiB"), " GiB");
  EXPECT_EQ(unit_of_bytes("4096"), "");
  EXPECT_EQ(format_bytes_up(2'139'400'001, "MB"), "2140MB");
  EXPECT_EQ(format_bytes_up(3'000'000, "MB"), "3MB");
  EXPECT_EQ(format_bytes_up(std::int64_t{3} << 29, " GiB"), "1.5 GiB");
  EXPECT_EQ(format_bytes_up((std::int64_t{3} << 29) + 1, "gib"), "1.51gib");
  EXPECT_EQ(format_bytes_up(parse_bytes("0.01GiB").value(), "GiB"), "0.01GiB");
  EXPECT_EQ(format_bytes_up(12345, ""), "12345");
  EXPECT_EQ(format_bytes_up(0, "GB"), "0GB");
  for (const char* unit : {"", "B", "KiB", " MiB", "gb", "TiB"})
    for (std::int64_t bytes = 1; bytes < std::int64_t{1} << 45; bytes = 3 * bytes + 1)
      EXPECT_GE(parse_bytes(format_bytes_up(bytes, unit)).value_or(0), bytes) << unit;
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

TEST(Log, GoesToTheInnermostScopeOfItsThreadElseToTheProcess) {
  std::vector<std::string> outer, inner, process;
  const auto into = [](std::vector<std::string>& lines) {
    return [&lines](Severity severity, const std::string& line) {
      lines.push_back((severity == Severity::kWarning ? "warning " : "") + line);
    };
  };
  log_info("heard by nobody");
  set_log_sink(into(process));
  {
    const LogScope outer_scope(into(outer));
    log_warning("{}", 1);
    {
      const LogScope inner_scope(into(inner));
      log_info("2");
      std::thread([] { log_info("3"); }).join();
    }
    log_info("4");
  }
  log_info("5");
  set_log_sink({});
  log_info("heard by nobody");
  EXPECT_EQ(outer, (std::vector<std::string>{"warning 1", "4"}));
  EXPECT_EQ(inner, (std::vector<std::string>{"2"}));
  EXPECT_EQ(process, (std::vector<std::string>{"3", "5"}));
}

TEST(Error, CheckEvaluatesOperandsOnlyOnFailure) {
  int evaluated = 0;
  ANABATIC_REQUIRE(true, "[test] {}", ++evaluated);
  EXPECT_EQ(evaluated, 0);
  EXPECT_THROW(ANABATIC_REQUIRE(false, "[test] {}", ++evaluated), InvalidArgument);
  EXPECT_EQ(evaluated, 1);
}

// The members that `text` is handed over as, "NAME=VALUE " each, "!NAME " for a double name.
std::string members_of(std::string_view text, int most_deep = 8) {
  std::string seen;
  const bool is_object = visit_members(
      text, most_deep,
      {.member = [&](std::string name, Json value) { seen += name + "=" + value.dump() + " "; },
       .double_name = [&](const std::string& name) { seen += "!" + name + " "; }});
  return is_object ? seen : "no object";
}

TEST(VisitMembers, HandsOverEachMemberInTheOrderOfTheText) {
  EXPECT_EQ(members_of(R"({"b": {"x": [1, [2.5, {"y": null}], "z"], "w": {}}, "a": [], "c": -1})"),
            R"(b={"w":{},"x":[1,[2.5,{"y":null}],"z"]} a=[] c=-1 )");
  EXPECT_EQ(members_of("{}"), "");
  for (const char* other : {"[1, 2]", "3", "\"a\"", "null", "[{\"a\": 1}]"})
    EXPECT_EQ(members_of(other), "no object") << other;
}

TEST(VisitMembers, TellsDoubleNamesDepthAndBrokenText) {
  EXPECT_EQ(members_of(R"({"a": {"x": 1, "x": 2}, "a": 3})"), R"(!x a={"x":2} a=3 )");
  EXPECT_EQ(members_of(R"({"a": [[1]]})", 3), "a=[[1]] ");
  EXPECT_THROW(members_of(R"({"a": [[[1]]]})", 3), InvalidArgument);
  for (const char* broken : {"", "{", "{\"a\": }", "{\"a\": 1} x", "{\"a\": 1,}", "{\"\xff\": 1}"})
    EXPECT_THROW(members_of(broken), Json::parse_error) << broken;
  EXPECT_THROW(members_of("{\"a\": 1e999}"), InvalidArgument);
}

std::string refusal(const std::function<void()>& read) {
  try {
    read();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "none";
}

TEST(JsonNode, ErrorsNamePlaceExpectedAndFound) {
  const Json json =
      parse_json(R"({"a": {"b": [1, "x", null]}, "n": 1.5, "big": 18446744073709551615,
                                   "nested": [[]], "t": true})");
  const JsonNode root(json, "[test] f.json");
  EXPECT_EQ(root.at("a").at("b").item(0).as_integer(0, 1), 1);
  EXPECT_EQ(root.at("n").as_number(), 1.5);
  EXPECT_FALSE(root.at("a").find("c"));
  EXPECT_EQ(refusal([&] { root.as_string(); }),
            "[test] f.json: expected a string, got an object of 5 entries");
  EXPECT_EQ(refusal([&] { root.at("a").at("c"); }),
            "[test] f.json: a: expected a field `c`, got none");
  EXPECT_EQ(refusal([&] { root.at("a").at("b").as_strings(); }),
            "[test] f.json: a.b[0]: expected a string, got 1");
  EXPECT_EQ(refusal([&] { root.at("a").at("b").item(2).as_bool(); }),
            "[test] f.json: a.b[2]: expected true or false, got null");
  EXPECT_EQ(refusal([&] { root.at("n").as_integer(); }),
            "[test] f.json: n: expected an integer, got 1.5");
  EXPECT_EQ(refusal([&] { root.at("big").as_integer(0, INT64_MAX); }),
            "[test] f.json: big: expected an integer from 0 to 9223372036854775807, got "
            "18446744073709551615");
  EXPECT_EQ(refusal([&] { root.at("n").as_number(2, 3); }),
            "[test] f.json: n: expected a number from 2 to 3, got 1.5");
  EXPECT_EQ(refusal([&] { root.at("t").members(); }),
            "[test] f.json: t: expected an object, got true");
  EXPECT_EQ(refusal([&] { JsonNode(json["nested"], "", "nested").as_bool(); }),
            "nested: expected true or false, got a list of 1 entries");
}

TEST(JsonNode, LongTextsAreCutBetweenCharacters) {
  EXPECT_EQ(show_json_briefly(std::string(58, 'x')), '"' + std::string(58, 'x') + '"');
  EXPECT_EQ(show_json_briefly(std::string(58, 'x') + "\u00e9\u00e9"),
            '"' + std::string(58, 'x') + "...");
}

TEST(JsonEdit, ChangesOneMemberAndNothingElse) {
  const std::string text =
      "{\n \"a\" : {\"b\": [1, \"}\", {\"b\": 2}]},\n \"b\":10000000000000000000000001,\n "
      "\"c\\\"\": "
      "\"\\\\\"\n}\n";
  EXPECT_EQ(with_member(text, "b", "[5]"),
            "{\n \"a\" : {\"b\": [1, \"}\", {\"b\": 2}]},\n \"b\":[5],\n \"c\\\"\": \"\\\\\"\n}\n");
  EXPECT_EQ(parse_json(with_member(text, "a", "null"))["a"], nullptr);
  EXPECT_EQ(parse_json(with_member(text, "c\"", "1"))["c\""], 1);
  EXPECT_EQ(with_member(text, "d", "1"), text.substr(0, text.size() - 3) + ",\n \"d\": 1\n}\n");
  EXPECT_EQ(with_member("{}", "d", "1"), "{\"d\": 1}");
  EXPECT_EQ(with_member("{\"a\":1,\"a\":2}", "a", "3"), "{\"a\":3,\"a\":3}");
}

TEST(JsonEdit, RemovesAMemberAndItsComma) {
  EXPECT_EQ(without_member("{\"a\": 1,\n \"b\": [2, {}],\n \"c\": 3\n}", "b"),
            "{\"a\": 1,\n \"c\": 3\n}");
  EXPECT_EQ(without_member("{\"a\": 1,\n \"b\": 2.50\n}", "b"), "{\"a\": 1\n}");
  EXPECT_EQ(without_member("{ \"b\": 2 }", "b"), "{ }");
  EXPECT_EQ(without_member("{\"b\":1,\"a\":{\"b\":0},\"b\":2,\"b\":3}", "b"), "{\"a\":{\"b\":0}}");
  EXPECT_EQ(without_member("{\"a\": 1}", "b"), "{\"a\": 1}");
}

}  // namespace
}  // namespace anabatic
