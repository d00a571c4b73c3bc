// SPDX-License-Identifier: Apache-2.0
#include "spec/state.h"

#include <fmt/core.h>

#include "base/error.h"

namespace anabatic::spec {
namespace {

struct RoleRow {
  StateRole role;
  std::string_view text;
  StateKind kind;
  // The parts of a whole state's name around its owner's. Both empty: the role has no owner.
  std::string_view prefix, suffix;
};

constexpr std::array<RoleRow, kStateRoles.size()> kRoleRows{{
    {StateRole::kParameter, "parameter", StateKind::kParameter, "", ""},
    {StateRole::kUpper, "upper", StateKind::kParameter, "", ""},
    {StateRole::kLower, "lower", StateKind::kOptimizer, "low.", ""},
    {StateRole::kFirstMoment, "first_moment", StateKind::kOptimizer, "first_moment.", ""},
    {StateRole::kSecondMoment, "second_moment", StateKind::kOptimizer, "second_moment.", ""},
    {StateRole::kPreviousNorm, "previous_norm", StateKind::kOptimizer, "", ""},
    {StateRole::kGradient, "gradient", StateKind::kGradient, "gradients.", ""},
    {StateRole::kSquares, "squares", StateKind::kGradient, "squares.gradients.", ""},
    {StateRole::kCopy, "copy", StateKind::kDerived, "", ".bf16"},
    {StateRole::kRowMajorCopy, "row_major", StateKind::kDerived, "", ".rows"},
    {StateRole::kPacking, "packing", StateKind::kDerived, "", ".packed"},
    {StateRole::kPackingTransposed, "packing_transposed", StateKind::kDerived, "",
     ".packed_transposed"},
    {StateRole::kCache, "cache", StateKind::kCache, "", ""},
    {StateRole::kLeafSum, "leaf_sum", StateKind::kSum, "leaf_sums.", ""},
    {StateRole::kMask, "mask", StateKind::kMask, "mask.", ""},
    {StateRole::kSparseIndex, "sparse_index", StateKind::kDerived, "", ".index"},
    {StateRole::kSparseIndexTransposed, "sparse_index_transposed", StateKind::kDerived, "",
     ".index_transposed"},
    {StateRole::kSparseValues, "sparse_values", StateKind::kDerived, "", ".sparse"},
    {StateRole::kSparseValuesTransposed, "sparse_values_transposed", StateKind::kDerived, "",
     ".sparse_transposed"},
}};

constexpr bool is_in_order() {
  for (std::size_t i = 0; i < kRoleRows.size(); ++i)
    if (kRoleRows[i].role != kStateRoles[i] || kRoleRows[i].role != static_cast<StateRole>(i))
      return false;
  return true;
}
static_assert(is_in_order());

const RoleRow& row_of(StateRole role) {
  ANABATIC_CHECK(static_cast<std::size_t>(role) < kRoleRows.size(), "[state role] unknown code {}",
                 static_cast<int>(role));
  return kRoleRows[static_cast<std::size_t>(role)];
}

}  // namespace

static std::string_view role_text(StateRole role) { return row_of(role).text; }

StateKind kind_of(StateRole role) { return row_of(role).kind; }

bool has_owner(StateRole role) {
  return !row_of(role).prefix.empty() || !row_of(role).suffix.empty();
}

std::string state_name(StateRole role, std::string_view owner) {
  ANABATIC_CHECK(has_owner(role), "[state role] a {} has no owner", to_string(role));
  return fmt::format("{}{}{}", row_of(role).prefix, owner, row_of(role).suffix);
}

std::string scales_name(StateRole role, std::string_view owner) {
  return fmt::format("{}_scales.{}", to_string(role), owner);
}

std::string_view to_string(Init::Rule rule) {
  constexpr std::array<std::string_view, 4> kNames{"zeros", "ones", "normal", "uniform"};
  return kNames.at(static_cast<std::size_t>(rule));
}

}  // namespace anabatic::spec

namespace anabatic {

std::string_view to_string(StateRole role) { return spec::role_text(role); }

}  // namespace anabatic
