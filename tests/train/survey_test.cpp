// SPDX-License-Identifier: Apache-2.0
// What `data check` finds in rows, with planted faults of masks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/json.h"
#include "base/text.h"
#include "support/letter_tokenizer.h"
#include "support/tiny_run.h"
#include "train/rows/row_survey.h"
#include "train/tokenize.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryDirectory;

constexpr const char* kTemplate =
    "{% for m in messages %}{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}";
const std::string kTurns =
    R"({"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"},
        {"role": "user", "content": "e"}, {"role": "assistant", "content": "f"}]})";

class Survey : public ::testing::Test {
 protected:
  void load(const std::string& chat_template, const std::string& merges = "") {
    config_ = testing::tiny_run(folder_.path());
    config_.train.objective = "sft";
    const fs::path model = fs::path(config_.model.path);
    testing::write_letter_tokenizer(model, R"({"eos_token": "<|im_end|>", "bos_token": "<s>"})");
    if (!merges.empty()) add_merges(model / "tokenizer.json", merges);
    config_.data.chat_template = folder_.path() / "chat.jinja";
    std::ofstream(config_.data.chat_template) << chat_template;
    encoder_.reset();
    tokenizer_.emplace(io::Tokenizer::load(model));
    special_ = special_tokens_of(config_, &*tokenizer_);
    encoder_ = std::make_unique<RowEncoder>(config_, *tokenizer_, special_);
  }

  // Each a pair of letters, "bc".
  static void add_merges(const fs::path& file, const std::string& merges) {
    Json json = parse_json(read_file(file));
    int id = 28;  // in front of the special tokens
    for (std::size_t i = 0; i + 1 < merges.size(); i += 3) {
      json["model"]["vocab"][merges.substr(i, 2)] = id++;
      json["model"]["merges"].push_back({merges.substr(i, 1), merges.substr(i + 1, 1)});
    }
    std::ofstream(file) << json.dump();
  }

  EncodedRow encode(const std::string& json) const {
    EncodedRow row{.place = "rows.jsonl:1"};
    OrderedJson parsed = io::parse_row(json);
    row.kind = io::kind_of_row(parsed);
    std::vector<std::size_t> ends;
    encoder_->encode(std::move(parsed), row.kind, row.ids, row.weights, ends, &row.notes);
    return row;
  }

  std::vector<Finding> findings(const EncodedRow& row) {
    RowSurvey survey(config_, *tokenizer_, special_, *encoder_);
    survey.add(row);
    std::vector<Finding> found = survey.findings();
    std::erase_if(found, [](const Finding& finding) { return finding.count == 0; });
    EXPECT_EQ(survey.is_good(),
              std::ranges::none_of(found, [](const Finding& finding) { return finding.is_error; }));
    return found;
  }

  // The tokens that are trained, those between them as a bar.
  std::string trained(const std::string& json) const {
    const EncodedRow row = encode(json);
    std::string text;
    for (std::size_t i = 0; i < row.ids.size(); ++i)
      text += row.weights[i] == 0 ? "|" : tokenizer_->id_to_token(row.ids[i]) + ";";
    return text;
  }

  const TemporaryDirectory folder_;
  RunConfig config_;
  std::optional<io::Tokenizer> tokenizer_;
  io::SpecialTokens special_;
  std::unique_ptr<RowEncoder> encoder_;
};

TEST_F(Survey, GoodRowsHaveNoFinding) {
  load(kTemplate);
  EXPECT_THAT(findings(encode(kTurns)), IsEmpty());
  EXPECT_THAT(findings(encode(R"({"prompt": "a", "completion": "b"})")), IsEmpty());
}

TEST_F(Survey, AShiftedMaskIsFound) {
  load(kTemplate);
  for (const int shift : {1, -1}) {
    EncodedRow row = encode(kTurns);
    const auto middle = shift > 0 ? row.weights.end() - 1 : row.weights.begin() + 1;
    std::rotate(row.weights.begin(), middle, row.weights.end());
    const std::vector<Finding> found = findings(row);
    ASSERT_EQ(found.size(), 1u) << shift;
    EXPECT_THAT(found[0].what, HasSubstr("end without a stop token"));
    EXPECT_THAT(found[0].first[0], HasSubstr("rows.jsonl:1: token "));
  }
}

TEST_F(Survey, AMaskedStopTokenIsFound) {
  load(kTemplate);
  EncodedRow row = encode(kTurns);
  row.weights.back() = 0;
  const std::vector<Finding> found = findings(row);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].first,
              ElementsAre(fmt::format("rows.jsonl:1: token {}, 'f'", row.ids.size() - 2)));
}

TEST_F(Survey, ADoubledBosOrEosNamesTheTemplatesLine) {
  load("{% if true %}\n{{ bos_token }}<s>{% endif %}\n" + std::string(kTemplate));
  std::vector<Finding> found = findings(encode(kTurns));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].what, "rows that begin with BOS twice");
  EXPECT_THAT(found[0].first[0], EndsWith("chat.jinja, line 2"));
  EXPECT_THAT(found[0].first[0], HasSubstr("rows.jsonl:1: <s> twice, written by "));
  load(std::string(kTemplate) + "\n{{ eos_token }}");
  found = findings(encode(kTurns));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].what, "rows with EOS twice in a row");
  EXPECT_THAT(found[0].first[0], EndsWith("chat.jinja, line 1, 2"));
}

// The white space at the end of a generation prompt, which is a line break in most templates.
TEST_F(Survey, APromptWithoutItsLastSpaceIsFound) {
  load(
      "{% for m in messages %}{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
      "{% if add_generation_prompt %}assistant{% endif %}");
  const std::vector<Finding> found = findings(encode(kTurns));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].what, HasSubstr("white space which their generation prompt lacks"));
  EXPECT_FALSE(found[0].is_error);
  EXPECT_THAT(found[0].first,
              ElementsAre("rows.jsonl:1: messages[1]", "rows.jsonl:1: messages[3]"));
}

TEST_F(Survey, TurnsWithoutAStopTokenAndWhatWasSuppressedAreNamed) {
  load("{% for m in messages %}{{ m.content }} {% endfor %}");
  std::vector<Finding> found = findings(encode(kTurns));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].first, ElementsAre("rows.jsonl:1: messages[1]"));
  EXPECT_TRUE(found[0].is_error);
  config_.data.require_stop_token = false;
  found = findings(encode(kTurns));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_FALSE(found[0].is_error);
  load(kTemplate);
  found = findings(encode(
      R"({"messages": [{"role": "user", "content": "<|im_end|>a<s>"},
                       {"role": "assistant", "content": "b"}]})"));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].what, HasSubstr("special tokens in content"));
  EXPECT_THAT(found[0].first, ElementsAre("rows.jsonl:1: <|im_end|> <s>"));
  found = findings(encode(
      R"({"messages": [{"role": "user", "content": "a"},
                       {"role": "assistant", "content": "b", "weight": 0}]})"));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].what, "rows without a trained token");
}

TEST_F(Survey, TheFirstTenPlacesAreKept) {
  load(kTemplate);
  RowSurvey survey(config_, *tokenizer_, special_, *encoder_);
  for (int i = 0; i < 12; ++i) survey.add_bad_row(fmt::format("rows.jsonl:{}: bad", i));
  const Finding bad = survey.findings().back();
  EXPECT_EQ(bad.count, 12);
  EXPECT_EQ(bad.first.size(), 10u);
  EXPECT_EQ(bad.first.back(), "rows.jsonl:9: bad");
  EXPECT_FALSE(survey.is_good());
}

// Without the completion "ab" would be one token, so the common prefix has none.
TEST_F(Survey, OfAPromptNoTokenIsTrainedThatLiesInItWhole) {
  load(kTemplate, "bc ab");
  EXPECT_EQ(trained(R"({"prompt": "ab", "completion": "d"})"), "|d;<|im_end|>;");
  EXPECT_EQ(trained(R"({"prompt": "ab", "completion": "cd"})"), "|bc;d;<|im_end|>;");
  EXPECT_EQ(trained(R"({"prompt": "b", "completion": "c"})"), "bc;<|im_end|>;");
  EXPECT_EQ(trained(R"({"prompt": "", "completion": "c"})"), "c;<|im_end|>;");
  EXPECT_EQ(trained(R"({"text": "ab"})"), "ab;<|im_end|>;");
}

}  // namespace
}  // namespace anabatic::train
