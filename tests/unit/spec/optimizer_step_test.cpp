// SPDX-License-Identifier: Apache-2.0
#include "spec/optimizer_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"

namespace anabatic::spec {
namespace {

using ::testing::HasSubstr;

const OptimizerStep kForms[] = {
    {},
    {.packs = Packs::kBoth},
    {.packs = Packs::kTransposed},
    {.is_slice = true, .first_row = 32},
    {.is_split = true},
    {.is_split = true, .packs = Packs::kTransposed},
    {.is_split = true, .packs = Packs::kTransposed, .is_slice = true, .first_row = 16},
    {.mask = SparsityPattern::kTwoOfFour},
    {.is_split = true,
     .packs = Packs::kTransposed,
     .is_slice = true,
     .first_row = 16,
     .mask = SparsityPattern::kBlock32}};

TEST(OptimizerStep, ComesBackFromItsAttributes) {
  for (const OptimizerStep& step : kForms)
    EXPECT_EQ(optimizer_step_of(to_attributes(step)), step) << to_string(step);
}

TEST(OptimizerStep, SaysItsFormInWords) {
  EXPECT_EQ(to_string(kForms[0]), "adamw");
  EXPECT_EQ(to_string(kForms[1]), "adamw packs_both");
  EXPECT_EQ(to_string(kForms[3]), "adamw");
  EXPECT_EQ(to_string(kForms[6]), "adamw split packs_transposed");
  EXPECT_EQ(to_string(kForms[8]), "adamw split packs_transposed masked");
}

TEST(OptimizerStep, PutsEveryOperandAtAPlaceOfItsOwn) {
  for (const OptimizerStep& step : kForms) {
    EXPECT_EQ(step.gradient(), step.is_split ? 2u : 1u);
    EXPECT_EQ(step.second_moment(), step.first_moment() + 1);
    EXPECT_EQ(step.first_packing(), step.new_second_moment() + 1);
    EXPECT_EQ(step.packing(), (step.mask ? step.place_of_mask() : step.step()) + 1);
  }
}

TEST(OptimizerStep, RefusesWhatNoUpdateDoes) {
  const auto error_of = [](const Attributes& attributes) -> std::string {
    try {
      optimizer_step_of(attributes);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_THAT(error_of({}), HasSubstr("expected 'rule'"));
  EXPECT_THAT(error_of({{"rule", "lion"}}), HasSubstr("'rule' to be one of adamw, got 'lion'"));
  EXPECT_THAT(error_of({{"rule", "adamw"}, {"packs", "none"}}),
              HasSubstr("'packs' to be transposed or both, got 'none'"));
  EXPECT_THAT(error_of({{"rule", "adamw"}, {"mask", "block23"}}),
              HasSubstr("'mask' to be one of block32, block16, 2:4 or unstructured, got"));
}

TEST(UpdateRules, StandInTheOrderOfTheirEnumeration) {
  for (std::size_t i = 0; i < std::size(kUpdateRules); ++i)
    EXPECT_EQ(static_cast<std::size_t>(kUpdateRules[i].rule), i);
}

}  // namespace
}  // namespace anabatic::spec
