// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cpu/log_sum_exp.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

double sum_ascending(const double* values, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i];
  return sum;
}

template <class T>
float largest_of(const T* values, std::int64_t count) {
  Floats largest = broadcast(-kInfinity);
  const std::int64_t whole = count / kLanes * kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) largest = max(load(values + i), largest);
  float result = max_lanes(largest);
  for (std::int64_t i = whole; i < count; ++i) result = std::max(result, load(values + i, 1)[0]);
  return result;
}

}  // namespace

void cross_entropy(const Arguments& args) {
  const TensorView& logits = args.inputs[0];
  const LossRows of_rows(args, 1, 3);
  const std::int64_t num_rows = rows(logits), width = columns(logits);
  auto* losses = reinterpret_cast<double*>(args.workspace);
  with_float_type(logits.type->dtype, [&]<class T>(T*) {
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const T* row = logits.as<const T>() + t * width;
        const double lse = log_sum_exp(row, width);
        args.outputs[1].as<float>()[t] = static_cast<float>(lse);
        const std::int32_t label = of_rows.labels[t];
        require_label(label, width);
        losses[t] = of_rows.counts(t) ? of_rows.weight(t) * (lse - load(row + label, 1)[0]) : 0.0;
      }
    };
    args.launch.team->for_range(num_rows, row_grain(width), run);
  });
  *args.outputs[0].as<float>() =
      static_cast<float>(*args.inputs[2].as<const float>() * sum_ascending(losses, num_rows));
}

void label_log_probabilities(const Arguments& args) {
  const TensorView& logits = args.inputs[0];
  const std::int32_t* labels = args.inputs[1].as<const std::int32_t>();
  const std::int64_t width = columns(logits);
  float *log_probabilities = args.outputs[0].as<float>(), *margins = args.outputs[1].as<float>();
  with_float_type(logits.type->dtype, [&]<class T>(T*) {
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const T* row = logits.as<const T>() + t * width;
        require_label(labels[t], width);
        log_probabilities[t] = margins[t] = 0;
        if (labels[t] == kIgnoredLabel) continue;
        const float of_label = load(row + labels[t], 1)[0];
        log_probabilities[t] = static_cast<float>(of_label - log_sum_exp(row, width));
        margins[t] = of_label - std::max(largest_of(row, labels[t]),
                                         largest_of(row + labels[t] + 1, width - labels[t] - 1));
      }
    };
    args.launch.team->for_range(rows(logits), row_grain(width), run);
  });
}

// May write over the logits: every element is read once, just before it is written.
void cross_entropy_gradient(const Arguments& args) {
  const TensorView &logits = args.inputs[0], &out = args.outputs[0];
  const LossRows of_rows(args, 1, 5);
  const float* lse = args.inputs[3].as<const float>();
  const float factor = *args.inputs[2].as<const float>() * *args.inputs[4].as<const float>();
  const std::int64_t width = columns(logits);
  with_float_type(logits.type->dtype, [&]<class X>(X*) {
    with_float_type(out.type->dtype, [&]<class Y>(Y*) {
      const auto run = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
          const X* x = logits.as<const X>() + t * width;
          Y* y = out.as<Y>() + t * width;
          const std::int32_t label = of_rows.labels[t];
          require_label(label, width);
          if (!of_rows.counts(t)) {
            for_lanes(0, width, [&](std::int64_t i, int n) { store(y + i, Floats{}, n); });
            continue;
          }
          const float row_factor = factor * of_rows.weight(t);
          const float of_label = exp(load(x + label, 1) - lse[t])[0] - 1.0f;
          for_lanes(0, width, [&](std::int64_t i, int n) {
            store(y + i, row_factor * exp(load(x + i, n) - lse[t]), n);
          });
          store(y + label, broadcast(row_factor * of_label), 1);
        }
      };
      args.launch.team->for_range(rows(logits), row_grain(width), run);
    });
  });
}

// A mean over all rows, or the sum over rows of documents times a scale.
void router_z_loss(const Arguments& args) {
  const float* logits = args.inputs[0].as<const float>();
  const auto* documents =
      args.inputs.size() > 1 ? args.inputs[1].as<const std::int32_t>() : nullptr;
  const std::int64_t num_rows = rows(args.inputs[0]), width = columns(args.inputs[0]);
  auto* squares = reinterpret_cast<double*>(args.workspace);
  args.launch.team->for_range(
      num_rows, row_grain(width), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
          const double lse = log_sum_exp(logits + t * width, width);
          squares[t] = documents != nullptr && documents[t] < 0 ? 0.0 : lse * lse;
        }
      });
  double scale = num_rows == 0 ? 0.0 : 1.0 / static_cast<double>(num_rows);
  if (documents != nullptr) scale = *args.inputs[2].as<const float>();
  *args.outputs[0].as<float>() = static_cast<float>(scale * sum_ascending(squares, num_rows));
}

void router_z_loss_gradient(const Arguments& args) {
  const std::int64_t num_rows = rows(args.inputs[0]), width = columns(args.inputs[0]);
  const auto* documents =
      args.inputs.size() > 2 ? args.inputs[2].as<const std::int32_t>() : nullptr;
  double factor = *args.inputs[1].as<const float>() * 2.0;
  if (documents != nullptr)
    factor *= *args.inputs[3].as<const float>();
  else
    factor /= static_cast<double>(num_rows);
  args.launch.team->for_range(
      num_rows, row_grain(width), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
          const float* x = args.inputs[0].as<const float>() + t * width;
          float* y = args.outputs[0].as<float>() + t * width;
          if (documents != nullptr && documents[t] < 0) {
            for_lanes(0, width, [&](std::int64_t i, int n) { store(y + i, Floats{}, n); });
            continue;
          }
          const double lse = log_sum_exp(x, width);
          const auto shift = static_cast<float>(lse), row_factor = static_cast<float>(factor * lse);
          for_lanes(0, width, [&](std::int64_t i, int n) {
            store(y + i, row_factor * exp(load(x + i, n) - shift), n);
          });
        }
      });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
