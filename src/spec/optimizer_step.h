// SPDX-License-Identifier: Apache-2.0
// One update of a parameter as the op `optimizer_step` has it: the rule, the form in which the
// parameter is kept, the packings that it writes, and where each operand stands. Passes, prices and
// kernels read the form here, never from operands.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "spec/attributes.h"
#include "spec/sparsity.h"

namespace anabatic::spec {

enum class UpdateRule : std::uint8_t { kAdamw };

// What a number of a rule may be: in [0, 1), or not below 0.
enum class NumberRange : std::uint8_t { kFraction, kNonNegative };
struct RuleNumber {
  std::string_view name;  // the attribute
  NumberRange range;
};

// A rule moves a parameter by its gradient and two moments.
struct UpdateRuleRow {
  UpdateRule rule;
  std::string_view name;  // what the attribute `rule` says
  std::span<const RuleNumber> numbers;
  std::int64_t flops_an_element;
};

// A multiply-add each for decay, both moments and the step; a root, two quotients, two scalings.
inline constexpr std::int64_t kAdamwFlops = 14;
inline constexpr RuleNumber kAdamwNumbers[] = {{"beta1", NumberRange::kFraction},
                                               {"beta2", NumberRange::kFraction},
                                               {"epsilon", NumberRange::kNonNegative},
                                               {"weight_decay", NumberRange::kNonNegative}};

// In the order of UpdateRule.
inline constexpr UpdateRuleRow kUpdateRules[] = {
    {UpdateRule::kAdamw, "adamw", kAdamwNumbers, kAdamwFlops}};

constexpr const UpdateRuleRow& row_of(UpdateRule rule) {
  return kUpdateRules[static_cast<std::size_t>(rule)];
}

// Packings of the new parameter (tensor/panels.h) that the sweep writes together with it.
enum class Packs : std::uint8_t { kNone, kTransposed, kBoth };

struct OptimizerStep {
  UpdateRule rule = UpdateRule::kAdamw;
  bool is_split = false;  // the parameter as upper and lower 16 bits (tensor/split_float.h)
  Packs packs = Packs::kNone;
  // Moments and lower 16 bits are those of some rows, from first_row on, counted through all
  // matrices; only these rows of the parameter change.
  bool is_slice = false;
  std::int64_t first_row = 0;
  // That of the parameter's mask, an input: parameter and moments are 0 where it is, whatever the
  // gradient is there. None: there is no mask.
  std::optional<SparsityPattern> mask{};
  // Blocks of a matrix that the mask keeps, where the others are 0 already, in the parameter and in
  // its moments: an update need not touch them. 0: it makes them so.
  std::int64_t kept = 0;

  // A slice writes its rows of the whole parameter's packing, an input that it works on in place.
  constexpr bool writes_rows_of_packing() const { return is_slice && packs != Packs::kNone; }

  // Inputs by place. The first one is the parameter, or its upper 16 bits.
  constexpr std::size_t low() const { return 1; }  // the lower 16 bits, with is_split
  constexpr std::size_t gradient() const { return is_split ? 2 : 1; }
  constexpr std::size_t first_moment() const { return gradient() + 1; }
  constexpr std::size_t second_moment() const { return gradient() + 2; }
  constexpr std::size_t clip_factor() const { return gradient() + 3; }
  constexpr std::size_t learning_rate() const { return gradient() + 4; }
  constexpr std::size_t step() const { return gradient() + 5; }
  constexpr std::size_t place_of_mask() const { return step() + 1; }  // with a mask
  // Of writes_rows_of_packing.
  constexpr std::size_t packing() const { return step() + (mask ? 2 : 1); }

  // Outputs by place: parameter, lower half, moments, packings.
  constexpr std::size_t new_first_moment() const { return is_split ? 2 : 1; }
  constexpr std::size_t new_second_moment() const { return new_first_moment() + 1; }
  constexpr std::size_t first_packing() const { return new_first_moment() + 2; }
  constexpr std::size_t num_packings() const { return static_cast<std::size_t>(packs); }

  bool operator==(const OptimizerStep&) const = default;
};

// From the attribute `packs`; kNone without it. InvalidArgument for another word.
Packs packs_of(const Attributes& attributes);

// From the attributes `rule`, `split`, `packs`, `first_row`, `mask` and `kept`; InvalidArgument
// where one of them is missing or says what no update does.
OptimizerStep optimizer_step_of(const Attributes& attributes);

// The attributes of the form: without first_row where the step is no slice, and so on.
Attributes to_attributes(const OptimizerStep& step);

// The form in words, one an attribute: "adamw split packs_transposed".
std::string to_string(const OptimizerStep& step);

}  // namespace anabatic::spec
