// SPDX-License-Identifier: Apache-2.0
#include "io/template/template.h"

#include <gtest/gtest.h>

#include <fstream>

#include "anabatic/error.h"
#include "base/json.h"

namespace anabatic::io {
namespace {

std::string render(std::string_view source, const OrderedJson& context = OrderedJson::object()) {
  return ChatTemplate::parse(source).render(context).text;
}

template <class Error>
std::string error_of(std::string_view source, const OrderedJson& context = OrderedJson::object()) {
  try {
    return "no error: " + render(source, context);
  } catch (const Error& error) {
    return error.what();
  }
}
std::string refusal(std::string_view source) { return error_of<Unsupported>(source); }
std::string fault(std::string_view source) { return error_of<InvalidArgument>(source); }

// "text[message.field]" of each span; "text[]" is the template's, "!" marks a generation.
std::string sources(std::string_view source, const OrderedJson& context) {
  const RenderedText rendered = ChatTemplate::parse(source).render(context);
  std::string shown;
  std::size_t begin = 0;
  for (const TextSpan& span : rendered.spans) {
    shown += rendered.text.substr(begin, span.end - begin) + (span.is_generated ? "!" : "") + "[";
    if (span.message >= 0) shown += std::to_string(span.message) + ".";
    shown += (span.field ? *span.field : "") + "]";
    begin = span.end;
  }
  return shown;
}

const OrderedJson& chat() {
  static const OrderedJson context = OrderedJson::parse(R"({
    "messages": [{"role": "user", "content": " Hi, you "}, {"role": "assistant", "content": "Yo", "n": 12, "calls": [{"name": "f", "arguments": {"a": "x"}}]}],
    "bos_token": "<s>", "tools": [{"name": "t"}]})");
  return context;
}

TEST(Template, IsEqualToJinja2) {
  std::ifstream file(ANABATIC_SOURCE_DIR "/tests/unit/template/goldens.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  const OrderedJson context = OrderedJson::parse(line)["context"];
  int count = 0;
  while (std::getline(file, line)) {
    const OrderedJson golden = OrderedJson::parse(line);
    const auto source = golden["template"].get<std::string>();
    ++count;
    try {
      const std::string text = render(source, context);
      EXPECT_TRUE(golden["text"].is_string())
          << "expected an error of " << source << ", got " << text;
      if (golden["text"].is_string()) {
        EXPECT_EQ(text, golden["text"].get<std::string>()) << source;
      }
    } catch (const Error& error) {
      EXPECT_TRUE(golden["text"].is_null()) << source << ": " << error.what();
    }
  }
  EXPECT_GE(count, 200);
}

TEST(Template, TellsWhoWroteWhat) {
  EXPECT_EQ(sources("{{ bos_token }}<u>{{ messages[0].content }}</u>", chat()),
            "<s><u>[] Hi, you [0.content]</u>[]");
  EXPECT_EQ(sources("{{ messages[0].content.strip() + '!' ~ messages[1].content }}", chat()),
            "Hi, you[0.content]![]Yo[1.content]");
  EXPECT_EQ(sources("{{ ('<' + messages[0].content + '>')[1:5] }}", chat()), " Hi,[0.content]");
  EXPECT_EQ(sources("{{ ('<' + messages[0].content + '>').split(',')|join('|') }}", chat()),
            "<[] Hi[0.content]|[] you [0.content]>[]");
  EXPECT_EQ(sources("{{ messages[0].content|replace('Hi', messages[1].content)|upper }}", chat()),
            " [0.content]YO[1.content], YOU [0.content]");
  EXPECT_EQ(sources("{% macro m(x) %}({{ x }}){% endmacro %}{% set t %}{{ m(messages[1].content) "
                    "}}{% endset %}{{ t }}",
                    chat()),
            "([]Yo[1.content])[]");
  EXPECT_EQ(sources("{{ messages[1].n }}{{ messages[1].n + 1 }}", chat()), "12[1.n]13[]");
  EXPECT_EQ(
      sources("{{ messages[1].calls|tojson }}{{ {'k': messages[1].content}|tojson }}", chat()),
      R"([{"name": "f", "arguments": {"a": "x"}}][1.calls]{"k": []"Yo"[1.content]}[])");
  EXPECT_EQ(sources("{{ tools|tojson }}", chat()), R"([{"name": "t"}][tools])");
  EXPECT_EQ(sources("{% for m in messages[::-1] %}{{ m['role'] }}{% generation %}{{ m.content "
                    "}}.{% endgeneration %}{% endfor %}",
                    chat()),
            "assistant[1.role]Yo![1.content].![]user[0.role] Hi, you ![0.content].![]");
  EXPECT_EQ(
      sources("{{ messages[0].content|title|trim|reverse }}{{ messages[1].content * 2 }}", chat()),
      "uoY ,iH[0.content]YoYo[1.content]");
}

TEST(Template, NamesLineAndColumn) {
  EXPECT_EQ(fault("a\n  {{ x.y }}"),
            "[chat template] chat template: line 2, column 7: 'x' is undefined");
  EXPECT_EQ(fault("{{ 1 + 'a' }}"),
            "[chat template] chat template: line 1, column 6: unsupported operand types for +: "
            "'int' and 'str'");
  EXPECT_EQ(fault("ä{% for %}"),
            "[chat template] chat template: line 1, column 9: expected a name, got '%}'");
  EXPECT_EQ(fault("{{ raise_exception('roles!') }}"),
            "[chat template] chat template: line 1, column 4: roles!");
  EXPECT_EQ(fault("{% if x %}"),
            "[chat template] chat template: line 1, column 11: unexpected end of template, "
            "expected {% endif %}");
  EXPECT_NE(fault("{{ x|nope }}").find("unknown filter 'nope'"), std::string::npos);
  EXPECT_NE(fault("{{ x is nope }}").find("unknown test 'nope'"), std::string::npos);
  EXPECT_NE(fault("{% nope %}").find("unknown tag 'nope'"), std::string::npos);
  EXPECT_NE(fault("{{ [].append(1) }}").find("'append' is undefined"), std::string::npos);
}

TEST(Template, RefusesByName) {
  for (const char* tag : {"include 'x'", "import 'x' as y", "from 'x' import y", "extends 'x'",
                          "block b", "with a = 1", "autoescape true"})
    EXPECT_NE(refusal(std::string("{% ") + tag + " %}").find("is not supported"), std::string::npos)
        << tag;
  EXPECT_NE(refusal("{% for x in y recursive %}{% endfor %}").find("'recursive'"),
            std::string::npos);
  EXPECT_NE(refusal("{{ x.__class__ }}").find("'__class__'"), std::string::npos);
  EXPECT_NE(refusal("{{ 'a'|urlencode }}").find("unsupported filter 'urlencode'"),
            std::string::npos);
  EXPECT_NE(refusal("{{ 'a'.zfill(3) }}").find("'zfill'"), std::string::npos);
  EXPECT_NE(refusal("{{ 9223372036854775807 + 1 }}").find("2^63"), std::string::npos);
  EXPECT_NE(refusal("{{ '%d' % 1 }}").find("the operator %"), std::string::npos);
}

TEST(Template, HasLimits) {
  EXPECT_NE(fault("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}")
                .find("more than 1000000 steps"),
            std::string::npos);
  EXPECT_NE(
      fault("{% for a in range(999) %}{{ 'x' * 100000 }}{% endfor %}").find("more than 10 MiB"),
      std::string::npos);
  EXPECT_NE(
      fault("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("nested more than 200 deep"),
      std::string::npos);
  EXPECT_NE(fault("{{ " + std::string(300, '(') + "1" + std::string(300, ')') + " }}")
                .find("nested more than 200 deep"),
            std::string::npos);
  std::string sum = "{{ 1";
  for (int i = 0; i < 2000; ++i) sum += " + 1";
  EXPECT_NE(fault(sum + " }}").find("more than 1000 operators"), std::string::npos);
}

TEST(Template, FormatsTheGivenTime) {
  std::tm time{};
  time.tm_year = 124;
  time.tm_mon = 6;
  time.tm_mday = 26;
  const auto rendered = ChatTemplate::parse("{{ strftime_now('%d %b %Y %%f %f') }}")
                            .render(OrderedJson::object(), time);
  EXPECT_EQ(rendered.text, "26 Jul 2024 %f 000000");
}

TEST(Template, KeepsWhatBranchesMayNotUse) {
  EXPECT_EQ(render("{% if false %}{{ x|nope }}{% endif %}ok"), "ok");
  EXPECT_EQ(render("{% macro f(a) %}{% if b is not defined %}{% set b = 'd' %}{% endif %}{{ a }}{{ "
                   "b }}{% endmacro %}{{ f(1) }}"),
            "1d");
}

}  // namespace
}  // namespace anabatic::io
