// SPDX-License-Identifier: Apache-2.0
// Helpers that cpu kernels share to read their call.
#pragma once
#include <cstdint>

#include "device/thread_team.h"
#include "kernels/kernel.h"

namespace anabatic::kernels::cpu {

inline constexpr std::int32_t kIgnoredLabel = -100;

// Rows of one partial result of a reduction over rows, and elements of one of sum_squares: fixed,
// so that bits do not depend on threads. Partials are merged in ascending order.
inline constexpr std::int64_t kRowBlock = 64, kElementBlock = 16384;

// Elements below which a range is not split among threads.
inline constexpr std::int64_t kElementGrain = 4096;

// Rows of `width` elements that make up a range worth a thread.
constexpr std::int64_t row_grain(std::int64_t width) {
  return width < 1 || width > kElementGrain ? 1 : kElementGrain / width;
}

// InvalidArgument unless `index` lies in [0, size). `what` names the op and the index.
void require_index(const char* what, std::int64_t index, std::int64_t size);
// As above; kIgnoredLabel passes.
void require_label(std::int64_t label, std::int64_t num_classes);

// The rows of a language-model loss: inputs `labels` and, where the call has it, `weights`.
struct LossRows {
  const std::int32_t* labels;
  const float* weights;  // null: 1 each

  LossRows(const Arguments& args, std::size_t labels_input, std::size_t weights_input)
      : labels(args.inputs[labels_input].as<const std::int32_t>()),
        weights(weights_input < args.inputs.size() ? args.inputs[weights_input].as<const float>()
                                                   : nullptr) {}

  float weight(std::int64_t row) const { return weights == nullptr ? 1.0f : weights[row]; }
  // A row of weight 0 is as good as one without a label.
  bool counts(std::int64_t row) const {
    return labels[row] != kIgnoredLabel && !(weight(row) == 0.0f);
  }
};

// order[begin, end) := the places [begin, end) of `indices` by index, those of one ascending.
void sort_by_index(const std::int32_t* indices, std::int64_t begin, std::int64_t end,
                   std::int32_t* order);

inline std::int64_t rows(const TensorView& view) { return view.type->dim(0); }
inline std::int64_t columns(const TensorView& view) { return view.type->dim(-1); }
inline std::int64_t size(const TensorView& view) { return view.type->num_elements(); }

inline bool adds(const Arguments& args, std::size_t output) {
  return output < args.accumulate.size() && args.accumulate[output];
}

// Calls body with a null pointer to the element type, f32 or bf16.
template <class Body>
inline void with_float_type(DType dtype, Body&& body) {
  if (dtype == DType::kBFloat16)
    body(static_cast<BFloat16*>(nullptr));
  else
    body(static_cast<float*>(nullptr));
}

// The same with f16.
template <class Body>
inline void with_any_float_type(DType dtype, Body&& body) {
  if (dtype == DType::kFloat16)
    body(static_cast<Float16*>(nullptr));
  else
    with_float_type(dtype, body);
}

// The types of a value and of gradients next to it: the same ones, or bf16 and f16.
template <class Body>
inline void with_gradient_types(DType value, DType gradient, Body&& body) {
  if (value == DType::kBFloat16 && gradient == DType::kFloat16)
    body(static_cast<BFloat16*>(nullptr), static_cast<Float16*>(nullptr));
  else
    with_any_float_type(value, [&]<class T>(T* type) { body(type, type); });
}

}  // namespace anabatic::kernels::cpu
