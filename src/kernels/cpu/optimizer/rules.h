// SPDX-License-Identifier: Apache-2.0
// The rules of optimizers, a vector of elements at a time: one struct a row of
// spec::kUpdateRules, with its constants and `step`. One namespace an instruction set, as
// vector_math.h has it. update.h knows how parameter and moments are kept.
#pragma once
#include <cmath>

#include "kernels/cpu/vector_math.h"
#include "spec/attributes.h"
#include "spec/optimizer_step.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

// torch.optim.AdamW: decay first, then the step with bias-corrected moments.
struct AdamwRule {
  float epsilon, keep, rate, root, blend1, keep2, blend2;

  AdamwRule(const spec::Attributes& attributes, double learning_rate, std::int32_t step) {
    const double beta1 = spec::get_double(attributes, "beta1");
    const double beta2 = spec::get_double(attributes, "beta2");
    const double decay = spec::get_double(attributes, "weight_decay");
    epsilon = static_cast<float>(spec::get_double(attributes, "epsilon"));
    keep = static_cast<float>(1.0 - learning_rate * decay);
    rate = static_cast<float>(learning_rate / (1.0 - std::pow(beta1, step)));
    root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, step)));
    blend1 = static_cast<float>(1.0 - beta1);
    keep2 = static_cast<float>(beta2);
    blend2 = static_cast<float>(1.0 - beta2);
  }

  // Updates parameter and moments by the gradient. One expression for every form: bits do not
  // depend on how parameter and moments are kept.
  ANABATIC_INLINE void step(Floats& p, Floats& m, Floats& v, Floats g) const {
    m += blend1 * (g - m);
    v = keep2 * v + blend2 * g * g;
    p = keep * p - rate * m / (square_root(v) * root + epsilon);
  }
};

// Calls body with a null pointer to the struct of that rule.
template <class Body>
void with_rule(spec::UpdateRule rule, Body&& body) {
  switch (rule) {
    case spec::UpdateRule::kAdamw:
      return body(static_cast<AdamwRule*>(nullptr));
  }
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
