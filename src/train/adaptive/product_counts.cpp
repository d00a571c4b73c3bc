// SPDX-License-Identifier: Apache-2.0
#include "train/adaptive/product_counts.h"

#include <algorithm>
#include <bit>

namespace anabatic::train {
namespace {

using kernels::CodingCounts;

// Whether a call counts: once a micro-batch, whatever is recomputed.
bool counts(const ProductCall& call) {
  return call.is_int8 &&
         ((call.role == spec::ProductRole::kForward && call.action == spec::Action::kForward) ||
          call.role == spec::ProductRole::kInputGradient);
}

Int8Counts shares_of(const std::string& unit, bool of_gradient, const CodingCounts& counts) {
  return {.unit = unit,
          .of_gradient = of_gradient,
          .largest = std::bit_cast<float>(counts.largest),
          .zeroed = share_of(counts.zeroed, counts.elements),
          .fallback = share_of(counts.fallbacks, counts.blocks)};
}

}  // namespace

ProductCounts::ProductCounts(const ProductCalls& calls)
    : of_inputs_(calls.units().size()), of_gradients_(calls.units().size()) {}

void ProductCounts::take(const BoundProgram& program, const ProductCalls& calls) {
  clear();
  for (const ProductCall& call : calls.calls()) {
    if (!counts(call)) continue;
    const CodingCounts& of_call = program.executor->counts(call.call);
    total_.add(of_call);
    auto& by_unit = call.role == spec::ProductRole::kForward ? of_inputs_ : of_gradients_;
    for (const ProductOperand& operand : call.operands) by_unit[operand.unit].add(of_call);
  }
  program.executor->clear_counts();
}

void ProductCounts::clear() {
  std::ranges::fill(of_inputs_, CodingCounts{});
  std::ranges::fill(of_gradients_, CodingCounts{});
  total_ = {};
}

bool ProductCounts::empty() const { return total_.blocks == 0; }

CodingCounts ProductCounts::total() const { return total_; }

std::vector<Int8Counts> ProductCounts::shares(const ProductCalls& calls) const {
  std::vector<Int8Counts> result;
  for (std::size_t i = 0; i < of_inputs_.size(); ++i) {
    const std::string& unit = calls.units()[i].name;
    if (of_inputs_[i].blocks > 0) result.push_back(shares_of(unit, false, of_inputs_[i]));
    if (of_gradients_[i].blocks > 0) result.push_back(shares_of(unit, true, of_gradients_[i]));
  }
  return result;
}

}  // namespace anabatic::train
