// SPDX-License-Identifier: Apache-2.0
#include "ops/losses/preference_loss.h"

#include "ops/build.h"
#include "ops/check.h"
#include "spec/preference.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_preference_loss(ir::Types inputs,
                                              const spec::Attributes& attributes) {
  const Check check("preference_loss", inputs, attributes, {"beta", "loss"},
                    {"label_smoothing", "length_normalized"});
  const Operand of_rows = check.wide(0, "log_probabilities", 1);
  check.same_type(check.wide(1, "reference", 1), of_rows);
  check.same_dim(check.i32(2, "completions", 1), 0, of_rows, 0);
  check.wide(3, "inverse_pairs", 0);
  if (!(check.number("beta") > 0)) check.fail("expected a beta above 0");
  if (!spec::preference_loss_from_string(check.string("loss")))
    check.fail("expected the loss sigmoid, hinge or ipo, got '" + check.string("loss") + "'");
  if (check.has("label_smoothing")) check.fraction("label_smoothing");
  if (check.has("length_normalized")) check.flag("length_normalized");
  const DType dtype = of_rows.dtype();
  return {typed(dtype, {}), *of_rows.type, typed(dtype, {spec::kNumPreferenceSums})};
}

}  // namespace

const ir::OpSchema kPreferenceLoss{
    .name = "preference_loss",
    .min_inputs = 4,
    .max_inputs = 4,
    .num_outputs = 3,
    .signature =
        "(log_probabilities f32[T], reference f32[T], completions i32[T], inverse_pairs "
        "f32[]) -> loss f32[], weights f32[T], sums f32[9]",
    .infer = infer_preference_loss,
    .cost = [](ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
      return streaming_cost(inputs, outputs, product({inputs[0].num_elements(), 8}));
    }};

}  // namespace anabatic::ops
