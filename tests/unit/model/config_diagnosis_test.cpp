// SPDX-License-Identifier: Apache-2.0
#include "model/config_diagnosis.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "base/json.h"
#include "base/text.h"
#include "model/config_reading.h"
#include "unit/model/model_files.h"

namespace anabatic::model {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

ConfigDiagnosis diagnosis_of(const std::string& json) {
  const io::TempDirectory folder;
  io::write_text(folder / "config.json", json);
  return diagnose_config(folder.path());
}

// A config of a family under another name.
ConfigDiagnosis renamed(const std::string& family, const std::string& more = "") {
  return diagnosis_of(small_json(
      family, R"("model_type": "afmoe")" + (more.empty() ? std::string() : ", " + more)));
}

TEST(ConfigDiagnosis, FindsTheFamilyThatReadsAConfigOfAnotherName) {
  // The members tell it from families with the same sizes.
  const std::pair<const char*, const char*> families[] = {
      {"deepseek_v3", R"("scoring_func": "sigmoid", "norm_topk_prob": true)"},
      {"glm4_moe", R"("use_qk_norm": true)"},
      {"granitemoeshared", ""},
      {"qwen3_moe", R"("architectures": ["Qwen3MoeWithAnotherHead"])"},
      {"qwen2_moe", ""},
      {"ernie4_5_moe", ""}};
  for (const auto& [family, members] : families) {
    const ConfigDiagnosis diagnosis = renamed(family, members);
    EXPECT_EQ(diagnosis.model_type, "afmoe");
    EXPECT_FALSE(diagnosis.is_known);
    EXPECT_EQ(diagnosis.family, family);
    EXPECT_THAT(diagnosis.problems, IsEmpty()) << family;
    EXPECT_THAT(diagnosis.unknown, IsEmpty()) << family;
  }
}

TEST(ConfigDiagnosis, NamesTheFieldsThatStandInTheWay) {
  const ConfigDiagnosis diagnosis =
      renamed("glm4_moe", R"("use_qk_norm": true, "a_new_gate": 2, "final_logit_softcapping": 30,
          "topk_group": 7)");
  EXPECT_EQ(diagnosis.family, "glm4_moe");
  EXPECT_THAT(diagnosis.unknown, ElementsAre("a_new_gate"));
  EXPECT_THAT(diagnosis.problems, Contains(HasSubstr("final_logit_softcapping: expected 0")));
  EXPECT_THAT(diagnosis.problems, Contains(HasSubstr("topk_group: ")));
}

TEST(ConfigDiagnosis, FindsNoFamilyNearAnotherKindOfModel) {
  const ConfigDiagnosis diagnosis = diagnosis_of(
      R"({"model_type": "mamba", "state_size": 16, "conv_kernel": 4, "expand": 2,
          "time_step_rank": 8, "use_conv_bias": true, "residual_in_fp32": true})");
  EXPECT_EQ(diagnosis.family, "");
  EXPECT_THAT(diagnosis.unknown, Contains("state_size"));
}

TEST(ConfigDiagnosis, KnowsAFamilyByNameAndByClass) {
  EXPECT_TRUE(diagnosis_of(small_json("llama", R"("a_new_field": 1)")).is_known);
  const ConfigDiagnosis by_class =
      renamed("deepseek_v3", R"("architectures": ["DeepseekV3ForCausalLM"])");
  EXPECT_TRUE(by_class.is_known);
  EXPECT_EQ(by_class.family, "deepseek_v3");
}

// docs/reference/families.md: what is in backquotes in a line.
std::vector<std::string> in_backquotes(std::string_view line) {
  std::vector<std::string> words;
  for (std::size_t at = line.find('`'); at != std::string_view::npos; at = line.find('`', at)) {
    const std::size_t end = line.find('`', at + 1);
    if (end == std::string_view::npos) break;
    words.emplace_back(line.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return words;
}

bool is_field(std::string_view word) {
  // A field of the rotary embedding, and values of fields.
  for (const char* other : {"alpha", "dynamic", "silu", "relu"})
    if (word == other) return false;
  if (find_family(word) != nullptr) return false;
  return word.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789") == std::string_view::npos;
}

void expect_known(const std::vector<std::string>& families, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    for (const std::string& name : families) {
      if (!is_field(word)) continue;
      const Json json = parse_json(small_json(name, fmt::format("\"{}\": \"absurd\"", word)));
      EXPECT_THAT(read_config_as(*find_family(name), json).ignored, Not(Contains(word))) << name;
    }
}

// The first cell of a row of the table, or what a line of the list begins with, names families.
TEST(FamiliesPage, ListsWhatTheCodeReads) {
  std::istringstream page(read_file(ANABATIC_FAMILIES_PAGE));
  std::vector<std::string> listed, families;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ") && !listed.empty()) break;  // of one subject, not of families
    const bool is_row = line.starts_with("| `"), is_item = line.starts_with("- `");
    if (is_row || is_item)
      families = in_backquotes(line.substr(0, line.find(is_row ? '|' : ':', 2)));
    else if (!line.starts_with("  ") || families.empty())
      families.clear();  // lines of a list go on indented
    for (const std::string& family : families)
      ASSERT_NE(find_family(family), nullptr) << family << " in: " << line;
    if (is_row) listed.insert(listed.end(), families.begin(), families.end());
    expect_known(families, in_backquotes(line));
  }
  std::vector<std::string> known;
  for (const Family* family : model::families()) known.emplace_back(family->model_type);
  EXPECT_THAT(listed, ::testing::UnorderedElementsAreArray(known));
}

}  // namespace
}  // namespace anabatic::model
