// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "anabatic/error.h"
#include "base/json.h"
#include "io/chat/trained_tokens.h"

namespace anabatic::io {
namespace {

constexpr const char* kChatml =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

RenderedChat render(const std::string& source, const char* row) {
  return ChatFormat(source, "test", OrderedJson::object()).render(OrderedJson::parse(row));
}

struct Tokens {
  std::vector<std::uint32_t> begins;
  std::vector<bool> is_special;
};
// "<|...|>" is a special token, any other byte a token.
Tokens tokens_of(const std::string& text) {
  Tokens tokens;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.compare(at, 2, "<|") == 0 ? text.find("|>", at) + 2 : 0;
    tokens.begins.push_back(static_cast<std::uint32_t>(at));
    tokens.is_special.push_back(end != 0);
    at = end != 0 ? end : at + 1;
  }
  return tokens;
}
TrainedTokens trained(const RenderedChat& chat, LossOn loss_on = LossOn::kAssistant,
                      std::size_t completion = 0) {
  const Tokens tokens = tokens_of(chat.rendered.text);
  return trained_tokens(
      chat, loss_on, tokens.begins, [&](std::size_t i) { return tokens.is_special[i]; },
      completion);
}
// The trained text, with "_" for each run that is not.
std::string shown(const RenderedChat& chat, const TrainedTokens& trained) {
  const Tokens tokens = tokens_of(chat.rendered.text);
  std::string text;
  for (std::size_t i = 0; i < tokens.begins.size(); ++i) {
    const std::size_t end =
        i + 1 < tokens.begins.size() ? tokens.begins[i + 1] : chat.rendered.text.size();
    if (trained.weights[i] != 0)
      text += chat.rendered.text.substr(tokens.begins[i], end - tokens.begins[i]);
    else if (text.empty() || text.back() != '_')
      text += '_';
  }
  return text;
}

TEST(Chat, TrainsAssistantsToTheirStopToken) {
  const RenderedChat chat = render(
      kChatml,
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
      {"role": "user", "content": "c"}, {"role": "assistant", "content": ""}]})");
  EXPECT_EQ(chat.generation_prompt, "<|im_start|>assistant\n");
  const TrainedTokens tokens = trained(chat);
  EXPECT_EQ(shown(chat, tokens), "_b<|im_end|>_<|im_end|>_");
  EXPECT_TRUE(tokens.unstopped.empty());
  EXPECT_FALSE(tokens.appends_eos);
}

TEST(Chat, WeighsMessages) {
  const RenderedChat chat = render(
      kChatml,
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0.5},
      {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "train": false}]})");
  const TrainedTokens tokens = trained(chat);
  EXPECT_EQ(shown(chat, tokens), "_b<|im_end|>_");
  EXPECT_EQ(*std::max_element(tokens.weights.begin(), tokens.weights.end()), 0.5f);
  EXPECT_EQ(chat.rendered.text.find("weight"), std::string::npos);
}

TEST(Chat, TrainsAllOrTheCompletion) {
  const RenderedChat chat = render(
      kChatml,
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  EXPECT_EQ(shown(chat, trained(chat, LossOn::kAll)), chat.rendered.text);
  EXPECT_EQ(shown(chat, trained(chat, LossOn::kCompletion, 1)), "_b<|im_end|>\n");
}

TEST(Chat, AppendsEosWhereTheTemplateEndsWithout) {
  const RenderedChat chat = render(
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}",
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  const TrainedTokens tokens = trained(chat);
  EXPECT_TRUE(tokens.appends_eos);
  EXPECT_EQ(tokens.weights.size(), tokens_of(chat.rendered.text).begins.size() + 1);
  EXPECT_EQ(tokens.weights.back(), 1);
}

TEST(Chat, NamesTurnsWithoutStopToken) {
  const RenderedChat chat = render(
      "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
      R"({"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]})");
  EXPECT_EQ(trained(chat).unstopped, std::vector<std::size_t>{0});
}

TEST(Chat, TagsGoFirst) {
  const RenderedChat chat = render(
      "{% for m in messages %}<|s|>{% if m.role == 'assistant' %}{% generation %}{{ m.content "
      "}}<|e|>{% endgeneration %}{% else %}{{ m.content }}<|e|>{% endif %}{% endfor %}",
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  EXPECT_EQ(shown(chat, trained(chat)), "_b<|e|>");
}

TEST(Chat, MatchesAddedTokensOfTheTemplateAlone) {
  const RenderedChat chat = render(
      kChatml,
      R"({"messages": [{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "b"}]})");
  std::vector<AddedTokenMatch> matches;
  for (const AddedTokenRange& range : chat.added_token_ranges()) matches.push_back(range.match);
  using enum AddedTokenMatch;
  EXPECT_EQ(matches, (std::vector{kAll, kNone, kAll, kNotSpecial, kAll}));
}

TEST(Chat, DropsNullsAndKnowsNamesOfReasoning) {
  const RenderedChat chat = render(
      "{{ messages[0].keys()|list }}{{ messages[0].thinking }}",
      R"({"messages": [{"role": "assistant", "content": null, "tool_calls": null, "reasoning": "r"}]})");
  EXPECT_EQ(chat.rendered.text, "['thinking', 'role', 'reasoning', 'reasoning_content']r");
}

TEST(Chat, RefusesBadRows) {
  const auto error_of = [](const char* row) -> std::string {
    try {
      render(kChatml, row);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(error_of(R"({"messages": []})").find("at least one message"), std::string::npos);
  EXPECT_NE(error_of(R"({"messages": [7]})").find("messages[0]: expected an object"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"messages": [{"content": "a"}]})").find("messages[0].role"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"messages": [{"role": "user", "content": "a", "weight": -1}]})")
                .find("messages[0].weight"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})")
                .find("expected text parts"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"messages": [{"role": "user", "content": "a"}], "tools": "nope"})")
                .find("tools: expected a list"),
            std::string::npos);
}

}  // namespace
}  // namespace anabatic::io
