// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/widened/widened_rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <deque>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rounding.h"
#include "kernels/cpu/call.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu {
namespace {

constexpr std::string_view kSuffix = "_widened";

constexpr std::array<std::string_view, 22> kWidenedOps{"activation",
                                                       "activation_gradient",
                                                       "attention",
                                                       "attention_gradient",
                                                       "clamp",
                                                       "clamp_gradient",
                                                       "cross_entropy_gradient",
                                                       "dropout",
                                                       "embedding_weight_gradient",
                                                       "expert_bias",
                                                       "expert_bias_router_gradient",
                                                       "expert_bias_weight_gradient",
                                                       "fake_quantize_tokens",
                                                       "gate_rows",
                                                       "gate_rows_gradient",
                                                       "join_heads",
                                                       "join_heads_gradient",
                                                       "layer_norm",
                                                       "layer_norm_input_gradient",
                                                       "layer_norm_weight_gradient",
                                                       "scale",
                                                       "scale_by"};

bool is_half(const TensorType& type) {
  return type.dtype == DType::kFloat16 || type.dtype == DType::kBFloat16;
}

// Becomes `from` with f32 in place of 16 bits.
void widen_type(const TensorType& from, TensorType& to) {
  to = from;
  if (is_half(from)) to.dtype = DType::kFloat32;
}

// Bytes of the workspace for an operand: none where it is not widened.
std::int64_t widened_bytes(const TensorType& type) {
  return is_half(type) ? round_up(type.num_elements() * std::int64_t{sizeof(float)}, 64) : 0;
}

// The operands of a call in f32. A thread keeps them from call to call, so that a step allocates
// nothing.
struct WidenedOperands {
  std::vector<TensorType> types{};
  std::vector<TensorView> views{};

  // Gives the bytes of `workspace` that they take, or would take of a null one.
  std::int64_t set(std::span<const TensorView> operands, std::byte* workspace) {
    if (types.size() < operands.size()) types.resize(operands.size());
    views.assign(operands.begin(), operands.end());
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      widen_type(*operands[i].type, types[i]);
      views[i].type = &types[i];
      if (is_half(*operands[i].type)) views[i].data = workspace + bytes;
      bytes += widened_bytes(*operands[i].type);
    }
    return bytes;
  }
};

// Elements of `from` to the dtype of `to`, of the same number.
void convert_operand(const TensorView& from, const TensorView& to, void (*cast)(const Arguments&),
                     const Launch& launch) {
  static const spec::Attributes to_nearest{{"rounding", std::string("even")}};
  cast({.inputs = {&from, 1},
        .outputs = {&to, 1},
        .attributes = &to_nearest,
        .workspace = nullptr,
        .prepared = nullptr,
        .accumulate = {},
        .launch = launch});
}

// A row of the table. It has to stay where it is.
class WidenedRow {
 public:
  WidenedRow(const Kernel& inner, void (*cast)(const Arguments&))
      : inner_(inner), cast_(cast), name_(fmt::format("{}{}", inner.name, kSuffix)) {}

  // Without `prepare`: results are read at once, so they stay in the caches.
  Kernel kernel() const {
    Kernel kernel;
    kernel.name = name_;
    kernel.op = inner_.op;
    kernel.supports = decltype(kernel.supports)::bind<&WidenedRow::supports>(*this);
    kernel.workspace_bytes =
        decltype(kernel.workspace_bytes)::bind<&WidenedRow::workspace_bytes>(*this);
    kernel.run = decltype(kernel.run)::bind<&WidenedRow::run>(*this);
    return kernel;
  }

 private:
  // The problem of the inner row.
  struct InnerProblem {
    std::vector<TensorType> inputs, outputs;
    spec::Problem problem;

    explicit InnerProblem(const spec::Problem& whole)
        : inputs(whole.inputs.size()), outputs(whole.outputs.size()), problem(whole) {
      for (std::size_t i = 0; i < inputs.size(); ++i) widen_type(whole.inputs[i], inputs[i]);
      for (std::size_t o = 0; o < outputs.size(); ++o) widen_type(whole.outputs[o], outputs[o]);
      problem.inputs = inputs;
      problem.outputs = outputs;
    }
    InnerProblem(const InnerProblem&) = delete;
  };

  Support supports(const spec::Problem& problem) const {
    bool has_f16 = false;
    for (const std::span<const TensorType> types : {problem.inputs, problem.outputs})
      for (const TensorType& type : types) {
        has_f16 |= type.dtype == DType::kFloat16;
        if (type.is_quantized() || (is_half(type) && type.layout != kRowMajor))
          return no(fmt::format("expected rows of plain elements, got {}", to_string(type)));
      }
    if (!has_f16) return no("no operand is f16");
    return inner_.supports(InnerProblem(problem).problem);
  }

  std::int64_t workspace_bytes(const spec::Problem& problem) const {
    std::int64_t bytes = 0;
    for (const std::span<const TensorType> types : {problem.inputs, problem.outputs})
      for (const TensorType& type : types) bytes += widened_bytes(type);
    if (inner_.workspace_bytes != nullptr)
      bytes += inner_.workspace_bytes(InnerProblem(problem).problem);
    return bytes;
  }

  void run(const Arguments& args) const {
    thread_local WidenedOperands inputs, outputs;
    const std::int64_t of_inputs = inputs.set(args.inputs, args.workspace),
                       of_outputs = outputs.set(args.outputs, args.workspace + of_inputs);
    for (std::size_t i = 0; i < args.inputs.size(); ++i)
      if (is_half(*args.inputs[i].type))
        convert_operand(args.inputs[i], inputs.views[i], cast_, args.launch);
    for (std::size_t o = 0; o < args.outputs.size(); ++o)
      if (is_half(*args.outputs[o].type) && adds(args, o))
        convert_operand(args.outputs[o], outputs.views[o], cast_, args.launch);
    Arguments inner = args;
    inner.inputs = {inputs.views.data(), args.inputs.size()};
    inner.outputs = {outputs.views.data(), args.outputs.size()};
    inner.workspace = args.workspace + of_inputs + of_outputs;
    inner_.run(inner);
    for (std::size_t o = 0; o < args.outputs.size(); ++o)
      if (is_half(*args.outputs[o].type))
        convert_operand(outputs.views[o], args.outputs[o], cast_, args.launch);
  }

  const Kernel& inner_;
  void (*cast_)(const Arguments&);
  const std::string name_;
};

// The casts of the instruction set that a row's name ends with.
void (*cast_of(std::string_view row))(const Arguments&) {
  if (row.ends_with("_avx512")) return variants::cast().avx512;
  if (row.ends_with("_avx2")) return variants::cast().avx2;
  return variants::cast().portable;
}

struct WidenedTable {
  std::deque<WidenedRow> rows;
  std::vector<Kernel> kernels;

  explicit WidenedTable(std::span<const Kernel> inner) {
    for (const Kernel& row : inner) {
      const bool is_listed = std::ranges::find(kWidenedOps, row.op) != kWidenedOps.end();
      // Rows for pairs of bf16 have no form in f32.
      if (!is_listed || row.name.ends_with("_avx512_bf16")) continue;
      rows.emplace_back(row, cast_of(row.name));
      kernels.push_back(rows.back().kernel());
    }
  }
};

}  // namespace

bool is_widened(std::string_view row) { return row.ends_with(kSuffix); }

}  // namespace anabatic::kernels::cpu

namespace anabatic::kernels {

std::span<const Kernel> cpu_widened_table() {
  static const cpu::WidenedTable table(cpu_table());
  return table.kernels;
}

}  // namespace anabatic::kernels
