// SPDX-License-Identifier: Apache-2.0
#include "support/reference.h"

#include "base/error.h"
#include "base/name.h"
#include "kernels/ref/access.h"
#include "spec/product.h"
#include "spec/sparse_layout.h"

namespace anabatic::testing {
namespace {

const kernels::Kernel& reference_kernel(std::string_view op) {
  for (const kernels::Kernel& kernel : kernels::ref_table())
    if (kernel.op == op) return kernel;
  throw InvalidArgument(fmt::format("[reference] no ref kernel for op '{}'", op));
}

TensorType widened(const TensorType& type) {
  if (is_float(type.dtype)) return with_dtype(type, DType::kFloat64);
  TensorType wide = type;
  if (wide.is_quantized()) wide.blocks->scale = DType::kFloat64;
  return wide;
}

// The weights of 2:4, which in 16 bits may be turned.
void unpair_fours(OpCall& call, const std::vector<double>& pairs) {
  const std::int64_t panels = call.inputs[1].type.dim(-2), lines = spec::kTwoOfFourLines,
                     groups = call.inputs[0].type.dim(1) / 4,
                     matrices = call.inputs[1].type.num_elements() / (panels * groups * 2 * lines);
  spec::SparseLayout layout =
      spec::sparse_layout(spec::SparsityPattern::kTwoOfFour, panels * lines, 4 * groups, 0, false);
  for (std::int64_t matrix = 0; matrix < matrices; ++matrix)
    for (std::int64_t line = 0; line < panels * lines; ++line)
      for (std::int64_t group = 0; group < groups; ++group) {
        const auto byte = static_cast<std::int64_t>(call.inputs[2].data[static_cast<std::size_t>(
            matrix * layout.index_size() + spec::place_byte(layout, line, group))]);
        const std::int64_t places = byte >> spec::place_bit(group) & 15;
        const bool is_turned = spec::is_pair_turned(places & 3, places >> 2);
        const std::int64_t first = (matrix * panels + line / lines) * layout.block_size();
        for (const std::int64_t n : {0, 1})
          call.inputs[1]
              .data[static_cast<std::size_t>(first + spec::place_in_panel(false, line, group, n))] =
              pairs[static_cast<std::size_t>(
                  first + spec::place_in_panel(true, line, group, is_turned ? 1 - n : n))];
      }
}

// Values of sparse weights in 16 bits lie in pairs of the depth, and wider ones do not.
void unpair_values(OpCall& call) {
  if (!call.op.starts_with("sparse_linear") && !call.op.starts_with("grouped_sparse_linear"))
    return;
  if (call.op.ends_with("weight_gradient") || size_bytes(call.inputs[1].type.dtype) != 2) return;
  const auto pattern =
      *spec::sparsity_pattern_from_string(spec::get_string(call.attributes, "pattern"));
  const std::int64_t side = spec::mask_block(pattern);
  std::vector<double>& data = call.inputs[1].data;
  const std::vector<double> pairs = data;
  if (pattern == spec::SparsityPattern::kTwoOfFour) return unpair_fours(call, pairs);
  const std::int64_t block = side * side;
  for (std::int64_t first = 0; first < static_cast<std::int64_t>(data.size()); first += block)
    for (std::int64_t line = 0; line < side; ++line)
      for (std::int64_t k = 0; k < side; ++k)
        data[static_cast<std::size_t>(first + spec::place_in_block(side, false, line, k))] =
            pairs[static_cast<std::size_t>(first + spec::place_in_block(side, true, line, k))];
}

}  // namespace

std::vector<HostTensor> run_reference(const OpCall& call, std::span<const Values> before) {
  const kernels::Kernel& kernel = reference_kernel(call.op);
  std::vector<HostTensor> inputs, outputs;
  std::vector<TensorType> input_types;
  std::vector<TensorView> input_views, output_views;
  for (const Values& input : call.inputs) {
    inputs.emplace_back(input);
    input_types.push_back(input.type);
    input_views.push_back(inputs.back().view());
  }
  for (std::size_t i = 0; i < call.outputs.size(); ++i) {
    if (before.empty())
      outputs.emplace_back(call.outputs[i]);
    else
      outputs.emplace_back(Values{.type = call.outputs[i], .data = before[i].data});
    output_views.push_back(outputs.back().view());
  }
  const spec::DeviceSpec device;
  const spec::Problem problem{.op = intern(call.op),
                              .attributes = &call.attributes,
                              .inputs = input_types,
                              .outputs = call.outputs,
                              .device = &device};
  const auto workspace_bytes =
      kernel.workspace_bytes != nullptr ? kernel.workspace_bytes(problem) : 0;
  const GuardedBytes workspace(static_cast<std::size_t>(workspace_bytes));
  const auto accumulate = std::make_unique<bool[]>(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) accumulate[i] = !before.empty();
  kernel.run({.inputs = input_views,
              .outputs = output_views,
              .attributes = &call.attributes,
              .workspace = workspace.data(),
              .prepared = nullptr,
              .accumulate = {accumulate.get(), outputs.size()},
              .launch = {}});
  return outputs;
}

OpCall with_plain_weights(OpCall call) {
  const spec::ProductForm* form = spec::find_product(call.op);
  if (form == nullptr) return call;
  // After the weight of such a gradient come the operands of the activation.
  const bool is_first_alone = form->has_activation && form->role != spec::ProductRole::kForward;
  const std::size_t end = is_first_alone ? 2 : call.inputs.size();
  for (std::size_t i = 1; i < end; ++i) {
    Values& weight = call.inputs[i];
    if (!weight.type.is_quantized()) continue;
    const HostTensor stored(weight);
    weight.type = tensor_type(DType::kBFloat16, weight.type.shape);
    weight.data.resize(static_cast<std::size_t>(weight.type.num_elements()));
    for (std::size_t e = 0; e < weight.data.size(); ++e)
      weight.data[e] = kernels::ref::load_weight(stored.view(), static_cast<std::int64_t>(e));
  }
  return call;
}

std::vector<Values> run_in_double(const OpCall& call) {
  OpCall wide = with_plain_weights(call);
  unpair_values(wide);
  for (Values& input : wide.inputs) input.type = widened(input.type);
  for (TensorType& output : wide.outputs) output = widened(output);
  std::vector<Values> results;
  for (const HostTensor& output : run_reference(wide)) results.push_back(output.values());
  return results;
}

}  // namespace anabatic::testing
