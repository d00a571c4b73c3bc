// SPDX-License-Identifier: Apache-2.0
// Rows of table.cpp that exist once for each GEMM engine. Sources: linear.cpp (also grouped),
// linear_many.cpp (several weights), linear_activation.cpp (with an activation or its gradient),
// head/head_loss.cpp (the head with its loss).
#pragma once
#include "kernels/cpu/activation_stage.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/head/head_stage.h"
#include "kernels/cpu/int8/lines.h"
#include "kernels/kernel.h"

namespace anabatic::kernels::cpu {

// In the order of preference, those of int8 products apart: they take no others.
enum class Engine {
  kAmxBf16,
  kAvx512Bf16,
  kAvx512,
  kAvx2,
  kPortable,
  kInt8Avx512Vnni,
  kInt8AvxVnni,
  kInt8Avx2,
  kInt8Portable
};

// The engine, or null where it was not built.
inline const GemmEngine* engine_of(Engine engine) {
  switch (engine) {
    case Engine::kAmxBf16:
      return gemm_amx_bf16();
    case Engine::kAvx512Bf16:
      return gemm_avx512_bf16();
    case Engine::kAvx512:
      return gemm_avx512();
    case Engine::kAvx2:
      return gemm_avx2();
    case Engine::kPortable:
      return gemm_portable();
    case Engine::kInt8Avx512Vnni:
      return gemm_int8_avx512_vnni();
    case Engine::kInt8AvxVnni:
      return gemm_int8_avx_vnni();
    case Engine::kInt8Avx2:
      return gemm_int8_avx2();
    case Engine::kInt8Portable:
      return gemm_int8_portable();
  }
  return nullptr;
}

constexpr bool takes_bf16_alone(Engine engine) {
  return engine == Engine::kAmxBf16 || engine == Engine::kAvx512Bf16;
}

template <Engine E>
struct LinearRows {
  static Support supports(const spec::Problem& problem);
  static std::int64_t workspace_bytes(const spec::Problem& problem);
  static void forward(const Arguments& arguments);
  static void input_gradient(const Arguments& arguments);
  static void weight_gradient(const Arguments& arguments);
  static void weight_gradient_squares(const Arguments& arguments);
};

// linear_many and grouped_linear_many.
template <Engine E>
struct LinearManyRows {
  static Support supports(const spec::Problem& problem);
  static std::int64_t workspace_bytes(const spec::Problem& problem);
  static void forward(const Arguments& arguments);
  static void input_gradient(const Arguments& arguments);
  static void weight_gradient(const Arguments& arguments);
};

// linear_activation, grouped_linear_activation and their other forms.
template <const GemmEngine* (*kEngine)(), const ActivationStage* kStage>
struct LinearActivationRows {
  static Support supports(const spec::Problem& problem);
  static std::int64_t workspace_bytes(const spec::Problem& problem);
  static void forward(const Arguments& args);
  static void gradient(const Arguments& args);
};

// head_loss, with both gradients or with that of x, and head_log_probabilities.
template <const GemmEngine* (*kEngine)(), const HeadStage* kStage>
struct HeadLossRows {
  static Support supports(const spec::Problem& problem);
  static std::int64_t workspace_bytes(const spec::Problem& problem);
  static void run(const Arguments& args);
  static std::int64_t slicing_bytes(const spec::Problem& problem);
};

}  // namespace anabatic::kernels::cpu
