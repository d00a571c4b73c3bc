// SPDX-License-Identifier: Apache-2.0
#include "spec/optimizer_step.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace anabatic::spec {
namespace {

// In the order of Packs.
constexpr std::array<std::string_view, 3> kPacksWords{"none", "transposed", "both"};

UpdateRule rule_of(const std::string& name) {
  for (const UpdateRuleRow& row : kUpdateRules)
    if (row.name == name) return row.rule;
  std::string known;
  for (const UpdateRuleRow& row : kUpdateRules)
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  throw InvalidArgument(
      fmt::format("[optimizer_step] expected 'rule' to be one of {}, got '{}'", known, name));
}

Packs packs_of_word(const std::string& word) {
  const auto found = std::find(kPacksWords.begin() + 1, kPacksWords.end(), word);
  ANABATIC_REQUIRE(found != kPacksWords.end(),
                   "[optimizer_step] expected 'packs' to be transposed or both, got '{}'", word);
  return static_cast<Packs>(found - kPacksWords.begin());
}

}  // namespace

Packs packs_of(const Attributes& attributes) {
  const auto found = attributes.find("packs");
  return found == attributes.end() ? Packs::kNone : packs_of_word(get_string(attributes, "packs"));
}

OptimizerStep optimizer_step_of(const Attributes& attributes) {
  OptimizerStep step{.rule = rule_of(get_string(attributes, "rule")),
                     .is_split = get_bool_or(attributes, "split", false),
                     .packs = packs_of(attributes),
                     .is_slice = attributes.contains("first_row")};
  if (step.is_slice) step.first_row = get_int(attributes, "first_row");
  step.mask = mask_of(attributes);
  step.kept = kept_of(attributes);
  return step;
}

Attributes to_attributes(const OptimizerStep& step) {
  Attributes attributes{{"rule", std::string(row_of(step.rule).name)}};
  if (step.is_split) attributes["split"] = true;
  if (step.packs != Packs::kNone)
    attributes["packs"] = std::string(kPacksWords[static_cast<std::size_t>(step.packs)]);
  if (step.is_slice) attributes["first_row"] = step.first_row;
  if (step.mask) attributes[std::string(kMaskAttribute)] = std::string(to_string(*step.mask));
  if (step.kept > 0) attributes[std::string(kKeptAttribute)] = step.kept;
  return attributes;
}

std::string to_string(const OptimizerStep& step) {
  std::string words(row_of(step.rule).name);
  if (step.is_split) words += " split";
  if (step.packs != Packs::kNone)
    words += fmt::format(" packs_{}", kPacksWords[static_cast<std::size_t>(step.packs)]);
  if (step.mask) words += step.kept > 0 ? " masked settled" : " masked";
  return words;
}

}  // namespace anabatic::spec
