// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/optimizer/rows.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/rounding.h"
#include "spec/optimizer_step.h"
#include "tensor/dynamic_map.h"
#include "tensor/panels.h"

namespace anabatic::kernels::cpu {
namespace {

using enum DType;

constexpr DType kF32[] = {kFloat32}, kHigh[] = {kBFloat16}, kLow[] = {kUInt16}, kStep[] = {kInt32},
                kMoments[] = {kFloat32, kBFloat16, kUInt8}, kPackings[] = {kFloat32, kBFloat16};

// An operand and what it may be.
struct Expected {
  std::string_view name;
  const TensorType* type;
  std::span<const DType> dtypes;
};

bool is_moment_in_8_bits(const TensorType& type) {
  return type.is_quantized() && type.blocks->map != ElementMap::kLinear &&
         *type.blocks == moment_format(type.blocks->map);
}

std::vector<Expected> expected_operands(const spec::Problem& problem,
                                        const spec::OptimizerStep& step) {
  const auto input = [&](std::size_t place) { return &problem.inputs[place]; };
  std::vector<Expected> operands{
      {"parameter", input(0), step.is_split ? kHigh : kF32},
      {"gradient", input(step.gradient()), kF32},
      {"first_moment", input(step.first_moment()), kMoments},
      {"second_moment", input(step.second_moment()), kMoments},
      {"clip_factor", input(step.clip_factor()), kF32},
      {"learning_rate", input(step.learning_rate()), kF32},
      {"step", input(step.step()), kStep},
  };
  if (step.is_split) operands.push_back({"low", input(step.low()), kLow});
  for (std::size_t i = 0; i < step.num_packings(); ++i)
    if (const TensorType& packing = problem.outputs[step.first_packing() + i];
        !is_int8_panels(packing))
      operands.push_back({"packing", &packing, kPackings});
  return operands;
}

}  // namespace

// The op has checked shapes, and that states lie alike.
Support supports_update(const spec::Problem& problem) {
  const TensorType& parameter = problem.inputs[0];
  if (parameter.layout != kRowMajor && parameter.layout != panels_layout(false))
    return no(fmt::format("expected rows or panels, got {}", to_string(parameter)));
  for (const Expected& operand :
       expected_operands(problem, spec::optimizer_step_of(*problem.attributes))) {
    const DType dtype = operand.type->dtype;
    if ((operand.type->is_quantized() || dtype == kUInt8) && !is_moment_in_8_bits(*operand.type))
      return no(fmt::format("{} is {}; this kernel takes moments of {} blocks in 8 bits",
                            operand.name, to_string(*operand.type),
                            to_string(moment_format(ElementMap::kDynamic))));
    if (std::find(operand.dtypes.begin(), operand.dtypes.end(), dtype) != operand.dtypes.end())
      continue;
    std::string known;
    for (const DType one : operand.dtypes)
      known += (known.empty() ? "" : " or ") + std::string(to_string(one));
    return no(fmt::format("{} is {}; this kernel takes {}", operand.name, to_string(dtype), known));
  }
  return yes();
}

std::uint32_t watched_states(const spec::Attributes& attributes,
                             std::span<const TensorType> outputs) {
  const spec::OptimizerStep step = spec::optimizer_step_of(attributes);
  const bool is_quantized = outputs[step.new_first_moment()].is_quantized();
  if (is_quantized || step.packs == spec::Packs::kBoth) return 0;
  return step.is_split ? 0b1110 : 0b110;
}

// Vectors read a whole word from the byte of their first element on.
std::int64_t mask_bits_bytes(const TensorType& state) {
  constexpr std::int64_t kAlignment = 64;
  return round_up(ceil_div(stored_elements(state), 8) + std::int64_t{sizeof(std::uint32_t)},
                  kAlignment);
}

std::int64_t update_workspace_bytes(const spec::Problem& problem) {
  const spec::OptimizerStep step = spec::optimizer_step_of(*problem.attributes);
  return step.mask ? mask_bits_bytes(problem.inputs[step.gradient()]) : 0;
}

}  // namespace anabatic::kernels::cpu
