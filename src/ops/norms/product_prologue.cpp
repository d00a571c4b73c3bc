// SPDX-License-Identifier: Apache-2.0
#include "ops/norms/product_prologue.h"

#include <fmt/core.h>

#include "base/error.h"
#include "ops/elementwise/dropout.h"

namespace anabatic::ops {
namespace {

constexpr std::size_t kLeastOthers = 2;  // x, and a weight or a gradient

// The norm that the attribute names.
spec::Norm checked_norm(const Check& check, const spec::Attributes& attributes) {
  const auto word = attributes.find(spec::kNorm);
  const spec::Norm norm = spec::norm_of(attributes);
  if (word != attributes.end() && norm == spec::Norm::kNone)
    check.fail(fmt::format("expected 'norm' to be \"{}\" or \"{}\", got {}", spec::kRmsNorm,
                           spec::kLayerNorm, spec::to_string(word->second)));
  return norm;
}

void check_norm_inputs(const Check& check, spec::Norm norm, int first) {
  const Operand x = check.floating(0, "x", 2), statistics = check.wide(first, "statistics", 2);
  check.row_major(statistics);
  check.same_dim(statistics, 0, x, 0);
  check.size(statistics, 1, spec::num_statistics(norm));
  check.same_dim(check.wide(first + 1, "the norm's weight", 1), 0, x, 1);
  if (norm == spec::Norm::kLayer)
    check.same_dim(check.wide(first + 2, "the norm's bias", 1), 0, x, 1);
}

void check_dropout_input(std::string_view op, ir::Types inputs, const spec::Attributes& attributes,
                         int at) {
  spec::Attributes dropout;
  for (const std::string_view name : {spec::kDropoutRate, spec::kDropoutSite})
    if (const auto found = attributes.find(name); found != attributes.end()) dropout.insert(*found);
  const Check check(op, inputs, dropout, {spec::kDropoutRate, spec::kDropoutSite});
  check.size(check.i32(at, "draws", 1), 0, spec::kNumDropoutDraws);
  check_dropout_rate(check, spec::kDropoutRate);
  check.string(spec::kDropoutSite);
}

}  // namespace

ir::Types checked_without_prologue(std::string_view op, ir::Types inputs,
                                   const spec::Attributes& attributes, std::size_t most_inputs) {
  static const spec::Attributes kNone;
  const Check check(op, inputs, kNone);
  const spec::Norm norm = checked_norm(check, attributes);
  const std::size_t count = spec::num_prologue_inputs(attributes);
  if (count == 0) {
    if (inputs.size() > most_inputs)
      check.fail(fmt::format("expected at most {} inputs without 'norm', got {}", most_inputs,
                             inputs.size()));
    return inputs;
  }
  if (inputs.size() < kLeastOthers + count)
    check.fail(fmt::format("expected at least {} inputs with {}, got {}", kLeastOthers + count,
                           norm == spec::Norm::kNone   ? "dropout"
                           : spec::drops_x(attributes) ? "'norm' and dropout"
                                                       : "'norm'",
                           inputs.size()));
  const std::size_t first = inputs.size() - count;
  if (norm != spec::Norm::kNone) check_norm_inputs(check, norm, static_cast<int>(first));
  if (spec::drops_x(attributes))
    check_dropout_input(op, inputs, attributes, static_cast<int>(inputs.size() - 1));
  return inputs.first(first);
}

void require_no_prologue(const ir::Node& node) {
  ANABATIC_CHECK(spec::num_prologue_inputs(node.attributes) == 0,
                 "[{}] a product that applies a norm or dropout to x has no gradient",
                 node.op->name);
}

}  // namespace anabatic::ops
