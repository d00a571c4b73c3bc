// SPDX-License-Identifier: Apache-2.0
// How the op `router` chooses experts and weighs them. Op, kernels and models read the form here.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "spec/attributes.h"

namespace anabatic::spec {

enum class RouterScore : std::uint8_t { kSoftmax, kSigmoid };
// What a group of experts is chosen by: its largest value, or the sum of its two largest.
enum class GroupScore : std::uint8_t { kMax, kTop2 };
// Experts outside the chosen groups are never chosen, or compete with value 0 and weigh 0.
enum class BarredExperts : std::uint8_t { kExcluded, kZero };

// s = score(logits) and c = s + bias. Of c, the best groups are chosen, then the top_k experts in
// them, lower numbers first among equals. A chosen expert weighs scale · s, which `normalizes`
// divides by the sum S of the chosen s: by max(S + epsilon, floor).
struct RouterForm {
  std::int64_t top_k = 0;
  RouterScore score = RouterScore::kSoftmax;
  bool has_bias = false;  // an input [E] after the logits, which moves the choice alone
  std::int64_t groups = 1, group_top_k = 1;
  GroupScore group_score = GroupScore::kMax;
  BarredExperts barred = BarredExperts::kExcluded;
  bool normalizes = false;
  double epsilon = 0, floor = 0, scale = 1;

  bool bars_groups() const { return group_top_k < groups; }
  // The order of the logits decides: scores need not be compared.
  bool chooses_by_logits() const { return !has_bias && !bars_groups(); }

  // Inputs by place; documents are the last one, where there are any.
  static constexpr std::size_t bias() { return 1; }
  std::size_t documents() const { return has_bias ? 2 : 1; }

  bool operator==(const RouterForm&) const = default;
};

// From the attributes of `router` or of `router_gradient`, which have no `top_k`. InvalidArgument
// where a word is not known or an attribute is of another kind.
RouterForm router_of(const Attributes& attributes);
// Those of `router`, and those that its gradient reads. Defaults are left out but for `normalize`.
Attributes to_attributes(const RouterForm& form);
Attributes gradient_attributes(const RouterForm& form);

// Attributes that either op may leave out.
std::span<const std::string_view> optional_router_keys();
std::span<const std::string_view> optional_router_gradient_keys();

}  // namespace anabatic::spec
