// SPDX-License-Identifier: Apache-2.0
// The rows of linear_swiglu, grouped_linear_swiglu and their other forms, one a GEMM engine, behind
// table.cpp.
#pragma once
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/swiglu_stage.h"
#include "kernels/kernel.h"

namespace anabatic::kernels::cpu {

template <const GemmEngine* (*kEngine)(), const SwigluStage* kStage>
struct LinearSwigluRows {
  static Support supports(const spec::Problem& problem);
  static std::int64_t forward_workspace(const spec::Problem& problem);
  static std::int64_t gradient_workspace(const spec::Problem& problem);
  static void forward(const Arguments& args);
  static void gradient(const Arguments& args);
};

}  // namespace anabatic::kernels::cpu
