// SPDX-License-Identifier: Apache-2.0
// Ops over a few numbers, on the calling thread, and the rope table.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/scalar_rows.h"
#include "spec/rope.h"

namespace anabatic::kernels::cpu {

void clip_factor(const Arguments& args) {
  const double norm = *args.inputs[0].as<const float>();
  const double max_norm = spec::get_double(*args.attributes, "max_norm");
  double factor = max_norm == 0 ? 1.0 : std::min(1.0, max_norm / (norm + 1e-6));
  if (!std::isfinite(norm)) factor = std::numeric_limits<double>::quiet_NaN();
  *args.outputs[0].as<float>() = static_cast<float>(factor);
}

void global_norm(const Arguments& args) {
  double sum = 0;
  for (const TensorView& part : args.inputs) sum += *part.as<const double>();
  *args.outputs[0].as<float>() = static_cast<float>(std::sqrt(sum));
}

void load_balancing_loss(const Arguments& args) {
  const std::int64_t num_experts = size(args.inputs[0]);
  const double layers_tokens = static_cast<double>(args.inputs.size() / 2) *
                               static_cast<double>(spec::get_int(*args.attributes, "num_tokens"));
  double loss = 0;
  for (std::int64_t e = 0; e < num_experts; ++e) {
    double counts = 0, sums = 0;
    for (std::size_t layer = 0; layer < args.inputs.size() / 2; ++layer) {
      counts += args.inputs[2 * layer].as<const float>()[e];
      sums += args.inputs[2 * layer + 1].as<const float>()[e];
    }
    loss += counts / layers_tokens * (sums / layers_tokens);
  }
  *args.outputs[0].as<float>() = static_cast<float>(static_cast<double>(num_experts) * loss);
}

void load_balancing_loss_gradient(const Arguments& args) {
  const std::int64_t num_experts = size(args.outputs[0]);
  const double layers_tokens = static_cast<double>(args.inputs.size() - 1) *
                               static_cast<double>(spec::get_int(*args.attributes, "num_tokens"));
  const double factor = *args.inputs[0].as<const float>() * static_cast<double>(num_experts) /
                        layers_tokens / layers_tokens;
  for (std::int64_t e = 0; e < num_experts; ++e) {
    double counts = 0;
    for (const TensorView& layer : args.inputs.subspan(1)) counts += layer.as<const float>()[e];
    args.outputs[0].as<float>()[e] = static_cast<float>(factor * counts);
  }
}

// Angles are fp32 products, as transformers forms them; their cosines and sines are double.
void rope_table(const Arguments& args) {
  const std::int32_t* positions = args.inputs[0].as<const std::int32_t>();
  const std::int64_t num_rows = rows(args.inputs[0]), half = columns(args.outputs[0]) / 2;
  std::int64_t length = 1;
  for (std::int64_t t = 0; t < num_rows; ++t)
    length = std::max(length, std::int64_t{positions[t]} + 1);
  const spec::RopeFrequencies frequencies =
      spec::rope_frequencies(spec::rope_from_attributes(*args.attributes), length);
  const double factor = frequencies.scale;
  float* table = args.outputs[0].as<float>();
  args.team->for_range(num_rows, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t i = 0; i < half; ++i) {
        const float angle =
            static_cast<float>(positions[t]) * frequencies.inverse[static_cast<std::size_t>(i)];
        float* row = table + t * 2 * half;
        row[i] = static_cast<float>(factor * std::cos(static_cast<double>(angle)));
        row[half + i] = static_cast<float>(factor * std::sin(static_cast<double>(angle)));
      }
  });
}

}  // namespace anabatic::kernels::cpu
