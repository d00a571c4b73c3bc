// SPDX-License-Identifier: Apache-2.0
// The rows of heads with their loss: what they support, and the workspace that they need.
#include <fmt/core.h>

#include <algorithm>

#include "base/rounding.h"
#include "kernels/cpu/head/head_call.h"
#include "kernels/cpu/linear_rows.h"

namespace anabatic::kernels::cpu {
namespace {

using namespace head;

Shape shape_of(const spec::Problem& problem) {
  return head::shape_of(problem.inputs[0], problem.inputs[1],
                        is_of_rows(problem.inputs.size()) ? 1 : problem.outputs.size(),
                        *problem.attributes);
}

}  // namespace

template <const GemmEngine* (*kEngine)(), const HeadStage* kStage>
Support HeadLossRows<kEngine, kStage>::supports(const spec::Problem& problem) {
  const GemmEngine* engine = kEngine();
  if (engine == nullptr) return no("not in this build");
  if (problem.attributes->contains("fallback") == (engine->coding == nullptr))
    return no(engine->coding == nullptr ? "an int8 product" : "no int8 product");
  if (!usable(engine, *problem.device)) return no(fmt::format("the device has no {}", engine->isa));
  for (const TensorType* type : {&problem.inputs[0], &problem.inputs[1]}) {
    if (type->layout != kRowMajor)
      return no(fmt::format("expected row-major operands, got {}", to_string(*type)));
    if (type->dtype != DType::kFloat32 && type->dtype != DType::kBFloat16 &&
        type->dtype != DType::kFloat16)
      return no(fmt::format("expected f32, bf16 or f16, got {}", to_string(type->dtype)));
    if (!engine->accepts(type->dtype, type->dtype)) return no("expected bf16 x and weight");
  }
  return yes();
}

template <const GemmEngine* (*kEngine)(), const HeadStage* kStage>
std::int64_t HeadLossRows<kEngine, kStage>::workspace_bytes(const spec::Problem& problem) {
  const Shape shape = shape_of(problem);
  // A team that is smaller than planned for needs no more. A call of several micro-batches adds, or
  // is the first of them.
  const int num_threads = problem.device->num_threads;
  Int bytes = 0;
  for (const bool adds : {false, true}) {
    if (adds && !problem.may_add) break;
    const Cut cut = cut_rows(shape, *kEngine(), num_threads, adds);
    for (const auto& tiling : {cut.held, cut.rest})
      if (tiling)
        bytes = std::max(bytes, Space(shape, *tiling, *kEngine(), num_threads, nullptr).bytes);
  }
  return bytes;
}

template <const GemmEngine* (*kEngine)(), const HeadStage* kStage>
std::int64_t HeadLossRows<kEngine, kStage>::slicing_bytes(const spec::Problem& problem) {
  // Weights are packed once for each group of rows, and each chunk but the first goes over the sums
  // of their gradient, of which products hide all but about a quarter of a pass.
  const auto bytes = [&](Int slices) {
    Shape shape = shape_of(problem);
    shape.slices = slices;
    const Cut cut = cut_rows(shape, *kEngine(), problem.device->num_threads, problem.may_add);
    Int rest = shape.rows, packings = 0, sums = 0;
    if (cut.held) {
      packings = ceil_div(cut.held->depth, cut.held->rows) * cut.held->passes();
      rest = std::max<Int>(rest - cut.held->depth, 0);
    }
    if (cut.rest) {
      const Int chunks = ceil_div(rest, cut.rest->rows);
      packings += chunks * cut.rest->passes();
      sums = cut.held ? chunks : chunks - 1;
    }
    return shape.classes * shape.width *
           (packings * size_bytes(shape.dtype) + sums * Int{sizeof(float)} / 4);
  };
  return std::max<Int>(bytes(shape_of(problem).slices) - bytes(1), 0);
}

template <const GemmEngine* (*kEngine)(), const HeadStage* kStage>
void HeadLossRows<kEngine, kStage>::run(const Arguments& args) {
  const GemmEngine& engine = *kEngine();
  engine.coding == nullptr ? run_float_head(engine, *kStage, args)
                           : run_int8_head(engine, *kStage, args);
}

#ifdef ANABATIC_CPU_X86
template struct HeadLossRows<gemm_amx_bf16, &avx512::kHeadStage>;
template struct HeadLossRows<gemm_avx512_bf16, &avx512::kHeadStage>;
template struct HeadLossRows<gemm_avx512, &avx512::kHeadStage>;
template struct HeadLossRows<gemm_avx2, &avx2::kHeadStage>;
template struct HeadLossRows<gemm_int8_avx512_vnni, &avx512::kHeadStage>;
template struct HeadLossRows<gemm_int8_avx_vnni, &avx2::kHeadStage>;
template struct HeadLossRows<gemm_int8_avx2, &avx2::kHeadStage>;
#endif
template struct HeadLossRows<gemm_portable, &portable::kHeadStage>;
template struct HeadLossRows<gemm_int8_portable, &portable::kHeadStage>;

}  // namespace anabatic::kernels::cpu
