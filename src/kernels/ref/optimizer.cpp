// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "kernels/ref/access.h"
#include "kernels/ref/rows.h"

namespace anabatic::kernels::ref {

void sum_squares(const Arguments& args) {
  double sum = 0;
  for (std::int64_t i = 0; i < size(args.inputs[0]); ++i)
    sum += load(args.inputs[0], i) * load(args.inputs[0], i);
  store(args.outputs[0], 0, sum);
}

void global_norm(const Arguments& args) {
  double sum = 0;
  for (const TensorView& part : args.inputs) sum += load(part, 0);
  store(args.outputs[0], 0, std::sqrt(sum));
}

void clip_factor(const Arguments& args) {
  const double norm = load(args.inputs[0], 0);
  const double max_norm = spec::get_double(*args.attributes, "max_norm");
  double factor = max_norm == 0 ? 1.0 : std::min(1.0, max_norm / (norm + 1e-6));
  if (!std::isfinite(norm)) factor = std::numeric_limits<double>::quiet_NaN();
  store(args.outputs[0], 0, factor);
}

// torch.optim.AdamW: decay first, then the step with bias-corrected moments.
void adamw(const Arguments& args) {
  const TensorView &parameter = args.inputs[0], &gradient = args.inputs[1], &first = args.inputs[2],
                   &second = args.inputs[3];
  const double clip = load(args.inputs[4], 0), learning_rate = load(args.inputs[5], 0);
  const double step = static_cast<double>(load_index(args.inputs[6], 0));
  const double beta1 = spec::get_double(*args.attributes, "beta1");
  const double beta2 = spec::get_double(*args.attributes, "beta2");
  const double epsilon = spec::get_double(*args.attributes, "epsilon");
  const double decay = spec::get_double(*args.attributes, "weight_decay");
  const double correction1 = 1.0 - std::pow(beta1, step);
  const double correction2 = 1.0 - std::pow(beta2, step);
  for (std::int64_t i = 0; i < size(parameter); ++i) {
    double p = load(parameter, i), m = load(first, i), v = load(second, i);
    if (std::isfinite(clip)) {
      const double g = clip * load(gradient, i);
      m += (1.0 - beta1) * (g - m);
      v = beta2 * v + (1.0 - beta2) * g * g;
      const double denominator = std::sqrt(v) / std::sqrt(correction2) + epsilon;
      p = p * (1.0 - learning_rate * decay) - learning_rate / correction1 * m / denominator;
    }
    store(args.outputs[0], i, p);
    store(args.outputs[1], i, m);
    store(args.outputs[2], i, v);
  }
}

void adamw_pack(const Arguments& args) {
  adamw(args);
  for (const TensorView& packed : args.outputs.subspan(3))
    pack({.inputs = args.outputs.first(1), .outputs = {&packed, 1}, .attributes = args.attributes});
}

void adamw_pack_transposed(const Arguments& args) { adamw_pack(args); }

}  // namespace anabatic::kernels::ref
