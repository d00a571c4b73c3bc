// SPDX-License-Identifier: Apache-2.0
#include "ops/norms/product_norm.h"

#include <fmt/core.h>

#include "base/error.h"

namespace anabatic::ops {
namespace {

constexpr std::size_t kLeastOthers = 2;  // x, and a weight or a gradient

}  // namespace

ir::Types checked_without_norm(std::string_view op, ir::Types inputs,
                               const spec::Attributes& attributes, std::size_t most_inputs) {
  const auto norm_word = attributes.find(spec::kNorm);
  static const spec::Attributes kNone;
  const Check check(op, inputs, kNone);
  if (norm_word == attributes.end()) {
    if (inputs.size() > most_inputs)
      check.fail(fmt::format("expected at most {} inputs without 'norm', got {}", most_inputs,
                             inputs.size()));
    return inputs;
  }
  const spec::Norm norm = spec::norm_of(attributes);
  if (norm == spec::Norm::kNone)
    check.fail(fmt::format("expected 'norm' to be \"{}\" or \"{}\", got {}", spec::kRmsNorm,
                           spec::kLayerNorm, spec::to_string(norm_word->second)));
  const std::size_t count = spec::num_norm_inputs(norm);
  if (inputs.size() < kLeastOthers + count)
    check.fail(fmt::format("expected at least {} inputs with 'norm', got {}", kLeastOthers + count,
                           inputs.size()));
  const int first = static_cast<int>(inputs.size() - count);
  const Operand x = check.floating(0, "x", 2), statistics = check.wide(first, "statistics", 2);
  check.row_major(statistics);
  check.same_dim(statistics, 0, x, 0);
  check.size(statistics, 1, spec::num_statistics(norm));
  check.same_dim(check.wide(first + 1, "the norm's weight", 1), 0, x, 1);
  if (norm == spec::Norm::kLayer)
    check.same_dim(check.wide(first + 2, "the norm's bias", 1), 0, x, 1);
  return inputs.first(inputs.size() - count);
}

void require_no_norm(const ir::Node& node) {
  ANABATIC_CHECK(spec::norm_of(node.attributes) == spec::Norm::kNone,
                 "[{}] a product that applies a norm to x has no gradient", node.op->name);
}

}  // namespace anabatic::ops
