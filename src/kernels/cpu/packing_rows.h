// SPDX-License-Identifier: Apache-2.0
// Rows of grouped input-gradients cut by the attribute `slices`: they read weights as the forward
// does, and pack a group of experts at a time for the row that multiplies. Those of int8 products
// pack f32 rows (spec::kPackedFormat). Equal bits, for an expert's rows meet its own matrix alone.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "base/rounding.h"
#include "kernels/cpu/call.h"
#include "spec/product.h"
#include "tensor/panels.h"

namespace anabatic::kernels::cpu {

// For a call's types or views: inputs of three dimensions are weights, the first i32 one the
// offsets.
inline bool is_stack(const TensorType& type) { return type.ndim() == 3; }

// Experts of a group, at most.
inline std::int64_t experts_per_slice(const TensorType& weight,
                                      const spec::Attributes& attributes) {
  return ceil_div(weight.dim(0), spec::get_int(attributes, "slices"));
}

// `type` becomes that of so many experts of `weight`, packed for the product.
inline void set_packed(TensorType& type, const TensorType& weight, std::int64_t num_experts,
                       const spec::Attributes& attributes) {
  type = weight;
  type.layout = panels_layout(true);
  type.shape[0] = num_experts;
  if (!attributes.contains(spec::kPackedFormat)) return;
  type.dtype = DType::kInt8;
  type.blocks = int8_tile_format();
}

inline std::int64_t packed_type_bytes(const TensorType& packed) {
  return round_up(packed.num_bytes(), 64);
}

// Bytes of one expert of a weight in panels or rows.
inline std::int64_t matrix_bytes(const TensorType& weight) {
  const std::int64_t elements = weight.layout == kRowMajor ? weight.dim(-2) * weight.dim(-1)
                                                           : panel_shape(weight).num_elements();
  return elements * size_bytes(weight.dtype);
}

// The problem of one group.
struct SliceProblem {
  std::vector<TensorType> inputs;
  spec::Attributes attributes;
  spec::Problem problem;
  std::int64_t packed_bytes = 0;  // of the workspace

  explicit SliceProblem(const spec::Problem& whole)
      : inputs(whole.inputs.begin(), whole.inputs.end()),
        attributes(*whole.attributes),
        problem(whole) {
    attributes.erase("slices");
    attributes.erase(std::string(spec::kPackedFormat));
    problem.attributes = &attributes;
    for (TensorType& type : inputs) {
      if (!is_stack(type)) continue;
      set_packed(type, TensorType(type), experts_per_slice(type, *whole.attributes),
                 *whole.attributes);
      packed_bytes += packed_type_bytes(type);
    }
    problem.inputs = inputs;
  }
};

// Operands of a group's calls. A thread keeps them from call to call, and vectors in them never
// shrink, so that a step allocates nothing.
struct SliceOperands {
  std::vector<TensorView> inputs{};
  std::vector<TensorType> types{};
  TensorType source{};

  static SliceOperands& of_thread(std::span<const TensorView> inputs) {
    thread_local SliceOperands operands;
    operands.inputs.assign(inputs.begin(), inputs.end());
    if (operands.types.size() < inputs.size()) operands.types.resize(inputs.size());
    return operands;
  }
};

// `pack`, then `multiply`, on each group of experts.
inline void run_slices(const Arguments& args, void (*pack)(const Arguments&),
                       void (*multiply)(const Arguments&)) {
  const auto place_of = [&](auto&& is_it) {
    return static_cast<std::size_t>(
        std::find_if(args.inputs.begin(), args.inputs.end(),
                     [&](const TensorView& view) { return is_it(*view.type); }) -
        args.inputs.begin());
  };
  const std::size_t weight = place_of(is_stack),
                    offsets =
                        place_of([](const TensorType&type) { return type.dtype == DType::kInt32; });
  const std::int64_t num_experts = args.inputs[weight].type->dim(0),
                     most = experts_per_slice(*args.inputs[weight].type, *args.attributes);
  SliceOperands& operands = SliceOperands::of_thread(args.inputs);
  auto& [inputs, types, source] = operands;
  for (std::int64_t begin = 0; begin < num_experts; begin += most) {
    const std::int64_t count = std::min(most, num_experts - begin);
    std::byte* packed = args.workspace;
    for (std::size_t i = 0; i < args.inputs.size(); ++i) {
      const TensorView& whole = args.inputs[i];
      if (!is_stack(*whole.type)) continue;
      source = *whole.type;
      source.shape[0] = count;
      set_packed(types[i], *whole.type, most, *args.attributes);
      const std::int64_t most_bytes = packed_type_bytes(types[i]);
      types[i].shape[0] = count;
      const TensorView from{.data = whole.data + begin * matrix_bytes(source), .type = &source};
      inputs[i] = {.data = packed, .type = &types[i]};
      pack({.inputs = {&from, 1},
            .outputs = {&inputs[i], 1},
            .attributes = args.attributes,
            .workspace = nullptr,
            .prepared = nullptr,
            .accumulate = {},
            .launch = args.launch});
      packed += most_bytes;
    }
    types[offsets] = *args.inputs[offsets].type;
    types[offsets].shape[0] = count + 1;
    inputs[offsets] = {.data = args.inputs[offsets].data + begin * size_bytes(DType::kInt32),
                       .type = &types[offsets]};
    Arguments group = args;
    group.inputs = inputs;
    group.workspace = packed;
    multiply(group);
  }
}

// Rows: kernels of the op that multiply packed weights. kRun: the function of theirs that runs it.
template <class Rows, void (*kRun)(const Arguments&), void (*kPack)(const Arguments&)>
struct PackingRows {
  static Support supports(const spec::Problem& problem) {
    if (!problem.attributes->contains("slices")) return no("not cut into slices");
    return Rows::supports(SliceProblem(problem).problem);
  }
  static std::int64_t workspace_bytes(const spec::Problem& problem) {
    const SliceProblem slice(problem);
    return slice.packed_bytes + Rows::workspace_bytes(slice.problem);
  }
  static void run(const Arguments& args) { run_slices(args, kPack, kRun); }
  // Weights are read and packed; half of what is packed is read from another core's cache.
  static std::int64_t slicing_bytes(const spec::Problem& problem) {
    TensorType packed;
    std::int64_t bytes = 0;
    for (const TensorType& type : problem.inputs) {
      if (!is_stack(type)) continue;
      set_packed(packed, type, type.dim(0), *problem.attributes);
      bytes += type.num_bytes() + packed.num_bytes() * 3 / 2;
    }
    return bytes;
  }
};

}  // namespace anabatic::kernels::cpu
