// SPDX-License-Identifier: Apache-2.0
// The rows of head_loss and head_loss_with_gradient, one a GEMM engine, behind table.cpp.
#pragma once
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/head_stage.h"
#include "kernels/kernel.h"

namespace anabatic::kernels::cpu {

template <const GemmEngine* (*kEngine)(), const HeadStage* kStage>
struct HeadLossRows {
  static Support supports(const spec::Problem& problem);
  static std::int64_t workspace_bytes(const spec::Problem& problem);
  static void run(const Arguments& args);
  static std::int64_t slicing_bytes(const spec::Problem& problem);
};

}  // namespace anabatic::kernels::cpu
