// SPDX-License-Identifier: Apache-2.0
#include "ops/losses/label_log_probabilities.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> two_of_each_row(const Operand& rows) {
  const TensorType type = typed(wide_dtype(rows.dtype()), {rows.size(0)});
  return {type, type};
}

std::vector<TensorType> infer_of_logits(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("label_log_probabilities", inputs, attributes);
  const Operand logits = check.floating(0, "logits", 2), labels = check.i32(1, "labels", 1);
  check.same_dim(labels, 0, logits, 0);
  return two_of_each_row(logits);
}

std::vector<TensorType> infer_of_head(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("head_log_probabilities", inputs, attributes);
  const Operand x = check.floating(0, "x", 2), weight = check.floating(1, "weight", 2);
  check.same_dtype(x, weight);
  check.same_dim(x, 1, weight, 1);
  check.same_dim(check.i32(2, "labels", 1), 0, x, 0);
  return two_of_each_row(x);
}

// A maximum, a difference, an exponential and a sum each logit.
ir::Cost cost_of_logits(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, product({inputs[0].num_elements(), 4}));
}

// Every label may count.
ir::Cost cost_of_head(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs,
                        product({2, inputs[0].dim(0), inputs[0].dim(1), inputs[1].dim(0)}));
}

}  // namespace

const ir::OpSchema kLabelLogProbabilities{
    .name = "label_log_probabilities",
    .min_inputs = 2,
    .max_inputs = 2,
    .num_outputs = 2,
    .signature = "(logits [T,V], labels i32[T]) -> log_probabilities f32[T], margins f32[T]",
    .infer = infer_of_logits,
    .cost = cost_of_logits};

const ir::OpSchema kHeadLogProbabilities{
    .name = "head_log_probabilities",
    .min_inputs = 3,
    .max_inputs = 3,
    .num_outputs = 2,
    .signature =
        "(x [T,K], weight [V,K], labels i32[T]) -> log_probabilities f32[T], margins f32[T]",
    .infer = infer_of_head,
    .cost = cost_of_head};

}  // namespace anabatic::ops
