// SPDX-License-Identifier: Apache-2.0
// Ops over a few numbers, on the calling thread; the losses that balance experts, in which rows of
// no document (documents[t] < 0) have no part; the rope table.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/rounding.h"
#include "kernels/cpu/scalar_rows.h"
#include "spec/rope.h"

namespace anabatic::kernels::cpu {
namespace {

// Experts that one task sums, a cache line of a row: a fixed number, so that bits do not depend on
// threads.
constexpr std::int64_t kExpertBlock = 16;
using Block = std::array<double, kExpertBlock>;

// The number of tokens in the counts of a layer; each token chose top_k experts.
double num_tokens(const TensorView& counts, const spec::Attributes& attributes) {
  double sum = 0;
  for (std::int64_t e = 0; e < size(counts); ++e) sum += counts.as<const float>()[e];
  return sum / static_cast<double>(spec::get_int(attributes, "top_k"));
}

// Calls body(begin, end) for each run of rows of one document.
template <class Body>
void for_documents(const TensorView& documents, Body&& body) {
  const auto* numbers = documents.as<const std::int32_t>();
  const std::int64_t num_rows = rows(documents);
  for (std::int64_t begin = 0, end; begin < num_rows; begin = end) {
    end = begin + 1;
    while (end < num_rows && numbers[end] == numbers[begin]) ++end;
    if (numbers[begin] >= 0) body(begin, end);
  }
}

// How often rows [begin, end) chose the experts from `first` on.
Block count_experts(const TensorView& experts, std::int64_t begin, std::int64_t end,
                    std::int64_t first) {
  Block counts{};
  const auto* chosen = experts.as<const std::int32_t>();
  for (std::int64_t i = begin * columns(experts); i < end * columns(experts); ++i) {
    const std::int64_t e = chosen[i] - first;
    if (0 <= e && e < kExpertBlock) counts[static_cast<std::size_t>(e)] += 1.0;
  }
  return counts;
}

}  // namespace

void clip_factor(const Arguments& args) {
  const double norm = *args.inputs[0].as<const float>();
  const double max_norm = spec::get_double(*args.attributes, "max_norm");
  double factor = max_norm == 0 ? 1.0 : std::min(1.0, max_norm / (norm + 1e-6));
  if (!std::isfinite(norm)) factor = std::numeric_limits<double>::quiet_NaN();
  *args.outputs[0].as<float>() = static_cast<float>(factor);
}

void global_norm(const Arguments& args) {
  double sum = 0;
  for (const TensorView& sums : args.inputs)
    for (std::int64_t i = 0; i < size(sums); ++i) sum += sums.as<const double>()[i];
  *args.outputs[0].as<float>() = static_cast<float>(std::sqrt(sum));
}

void load_balancing_loss(const Arguments& args) {
  const std::int64_t num_experts = size(args.inputs[1]);
  const auto num_layers = static_cast<double>(args.inputs.size() / 2);
  const double tokens = num_tokens(args.inputs[1], *args.attributes);
  double loss = 0;
  for (std::int64_t e = 0; tokens > 0 && e < num_experts; ++e) {
    double counts = 0, sums = 0;
    for (std::size_t i = 1; i + 1 < args.inputs.size(); i += 2) {
      counts += args.inputs[i].as<const float>()[e];
      sums += args.inputs[i + 1].as<const float>()[e];
    }
    loss += counts / (num_layers * tokens) * (sums / num_layers);
  }
  *args.outputs[0].as<float>() = static_cast<float>(*args.inputs[0].as<const float>() *
                                                    static_cast<double>(num_experts) * loss);
}

void load_balancing_loss_gradient(const Arguments& args) {
  const std::int64_t num_experts = size(args.outputs[0]);
  const auto num_layers = static_cast<double>(args.inputs.size() - 2);
  const double tokens = num_tokens(args.inputs[2], *args.attributes);
  const double factor = static_cast<double>(*args.inputs[0].as<const float>()) *
                        *args.inputs[1].as<const float>() * static_cast<double>(num_experts);
  for (std::int64_t e = 0; e < num_experts; ++e) {
    double counts = 0;
    for (const TensorView& layer : args.inputs.subspan(2)) counts += layer.as<const float>()[e];
    args.outputs[0].as<float>()[e] =
        tokens > 0 ? static_cast<float>(factor * counts / (num_layers * tokens) / num_layers)
                   : 0.0f;
  }
}

// A double for each block of experts.
std::int64_t sequence_balance_loss_workspace_bytes(const spec::Problem& problem) {
  return ceil_div(problem.inputs[1].dim(1), kExpertBlock) * std::int64_t{sizeof(double)};
}

void sequence_balance_loss(const Arguments& args) {
  const TensorView &probabilities = args.inputs[1], &experts = args.inputs[2];
  const std::int64_t num_experts = columns(probabilities),
                     num_blocks = ceil_div(num_experts, kExpertBlock);
  auto* partials = reinterpret_cast<double*>(args.workspace);
  args.launch.team->for_tasks(num_blocks, [&](std::int64_t block) {
    const std::int64_t first = block * kExpertBlock,
                       width = std::min(kExpertBlock, num_experts - first);
    double loss = 0;
    for_documents(args.inputs[3], [&](std::int64_t begin, std::int64_t end) {
      Block sums{};
      for (std::int64_t t = begin; t < end; ++t) {
        const float* row = probabilities.as<const float>() + t * num_experts + first;
        for (std::int64_t e = 0; e < width; ++e) sums[static_cast<std::size_t>(e)] += row[e];
      }
      const Block counts = count_experts(experts, begin, end, first);
      const auto tokens = static_cast<double>(end - begin);
      for (std::size_t e = 0; e < sums.size(); ++e) loss += counts[e] / tokens * (sums[e] / tokens);
    });
    partials[block] = loss;
  });
  double loss = 0;
  for (std::int64_t block = 0; block < num_blocks; ++block) loss += partials[block];
  *args.outputs[0].as<float>() =
      static_cast<float>(*args.inputs[0].as<const float>() * static_cast<double>(num_experts) /
                         static_cast<double>(columns(experts)) * loss);
}

void sequence_balance_loss_gradient(const Arguments& args) {
  const TensorView &experts = args.inputs[2], &documents = args.inputs[3];
  const std::int64_t num_experts = columns(args.outputs[0]);
  auto* out = args.outputs[0].as<float>();
  const double factor = static_cast<double>(*args.inputs[0].as<const float>()) *
                        *args.inputs[1].as<const float>() * static_cast<double>(num_experts) /
                        static_cast<double>(columns(experts));
  args.launch.team->for_tasks(ceil_div(num_experts, kExpertBlock), [&](std::int64_t block) {
    const std::int64_t first = block * kExpertBlock,
                       width = std::min(kExpertBlock, num_experts - first);
    for (std::int64_t t = 0; t < rows(documents); ++t)
      if (documents.as<const std::int32_t>()[t] < 0)
        std::fill_n(out + t * num_experts + first, width, 0.0f);
    for_documents(documents, [&](std::int64_t begin, std::int64_t end) {
      const Block counts = count_experts(experts, begin, end, first);
      const auto tokens = static_cast<double>(end - begin);
      std::array<float, kExpertBlock> values{};
      for (std::size_t e = 0; e < counts.size(); ++e)
        values[e] = static_cast<float>(factor * counts[e] / tokens / tokens);
      for (std::int64_t t = begin; t < end; ++t)
        std::copy_n(values.data(), width, out + t * num_experts + first);
    });
  });
}

// Angles are fp32 products, as transformers forms them; their cosines and sines are double.
void rope_table(const Arguments& args) {
  const std::int32_t* positions = args.inputs[0].as<const std::int32_t>();
  const std::int64_t num_rows = rows(args.inputs[0]), half = columns(args.outputs[0]) / 2;
  std::int64_t length = 1;
  for (std::int64_t t = 0; t < num_rows; ++t)
    length = std::max(length, std::int64_t{positions[t]} + 1);
  const spec::Rope rope = spec::rope_from_attributes(*args.attributes);
  constexpr std::int64_t kBlock = 256;  // frequencies at a time, without a block of the heap
  std::array<float, kBlock> inverse;
  for (std::int64_t first = 0; first < half; first += kBlock) {
    const auto count = static_cast<std::size_t>(std::min(kBlock, half - first));
    const double factor =
        spec::fill_rope_frequencies(rope, length, first, std::span(inverse).first(count));
    float* table = args.outputs[0].as<float>() + first;
    args.launch.team->for_range(num_rows, 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t)
        for (std::size_t i = 0; i < count; ++i) {
          const float angle = static_cast<float>(positions[t]) * inverse[i];
          float* row = table + t * 2 * half;
          row[i] = static_cast<float>(factor * std::cos(static_cast<double>(angle)));
          row[half + static_cast<std::int64_t>(i)] =
              static_cast<float>(factor * std::sin(static_cast<double>(angle)));
        }
    });
  }
}

}  // namespace anabatic::kernels::cpu
