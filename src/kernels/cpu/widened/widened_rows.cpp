// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/widened/widened_rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rounding.h"
#include "kernels/cpu/call.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu {
namespace {

using Int = std::int64_t;

constexpr std::string_view kSuffix = "_widened";

// How an op's operands are cut into pieces of rows.
struct CutOp {
  std::string_view op;
  // All rows at once: rows lie anywhere, or belong to each other.
  bool is_whole = false;
  std::array<int, 2> whole_inputs{-1, -1};  // that have no rows
  // Outputs have no rows: pieces after the first one add to them.
  bool sums_rows = false;
};

constexpr std::array kCutOps = {
    CutOp{.op = "activation", .whole_inputs = {3, -1}},
    CutOp{.op = "activation_gradient"},
    CutOp{.op = "add"},
    CutOp{.op = "add_rms_norm", .whole_inputs = {1, -1}},
    CutOp{.op = "attention", .is_whole = true},
    CutOp{.op = "attention_gradient", .is_whole = true},
    CutOp{.op = "clamp"},
    CutOp{.op = "clamp_gradient"},
    CutOp{.op = "cross_entropy_gradient", .whole_inputs = {2, 4}},
    CutOp{.op = "embedding_weight_gradient", .is_whole = true},
    CutOp{.op = "expert_bias", .whole_inputs = {1, -1}},
    CutOp{.op = "expert_bias_router_gradient", .whole_inputs = {1, -1}},
    CutOp{.op = "expert_bias_weight_gradient", .is_whole = true},
    CutOp{.op = "gate_rows"},
    CutOp{.op = "gate_rows_gradient"},
    CutOp{.op = "join_heads"},
    CutOp{.op = "join_heads_gradient"},
    CutOp{.op = "layer_norm", .whole_inputs = {1, 2}},
    CutOp{.op = "layer_norm_input_gradient", .whole_inputs = {1, -1}},
    CutOp{.op = "layer_norm_weight_gradient", .sums_rows = true},
    CutOp{.op = "permute_gradient", .is_whole = true},
    CutOp{.op = "rms_norm", .whole_inputs = {1, -1}},
    CutOp{.op = "rms_norm_input_gradient", .whole_inputs = {1, -1}},
    CutOp{.op = "rms_norm_weight_gradient", .sums_rows = true},
    CutOp{.op = "rope"},
    CutOp{.op = "rope_pair", .whole_inputs = {3, 4}},
    CutOp{.op = "scale"},
    CutOp{.op = "scale_by", .whole_inputs = {1, -1}},
    CutOp{.op = "sum_rows", .is_whole = true},
    CutOp{.op = "unpermute", .is_whole = true},
    CutOp{.op = "unpermute_gradient", .is_whole = true},
};

const CutOp* find_cut(std::string_view op) {
  const auto* const found = std::ranges::find(kCutOps, op, &CutOp::op);
  return found != kCutOps.end() ? found : nullptr;
}

// Bytes of a piece's f32 operands: what the second caches of two cores hold.
constexpr Int kPieceBytes = Int{1} << 20;

bool is_half(const TensorType& type) {
  return type.dtype == DType::kFloat16 || type.dtype == DType::kBFloat16;
}

// The inputs of activation of two operands are gate, up, row_map, weights, those of one gate,
// row_map, weights.
bool is_whole_input(const CutOp& cut, std::size_t i, std::size_t num_inputs) {
  if (cut.op == "activation" && num_inputs == 3) return i == 2;
  return std::ranges::find(cut.whole_inputs, static_cast<int>(i)) != cut.whole_inputs.end();
}

// What a call of a row is made of.
struct Call {
  // Types of a piece, with f32 in place of 16 bits; the last piece may have fewer rows.
  std::vector<TensorType> inputs, outputs;
  std::vector<bool> input_has_rows, output_has_rows;
  Int rows = 0, piece_rows = 0;
  Int operand_bytes = 0;  // of the workspace, for widened operands
};

Int widened_bytes(const TensorType& type) {
  return round_up(type.num_elements() * Int{sizeof(float)}, 64);
}

// Fills in `call` without taking memory where it has had as many operands before.
void describe(const CutOp& cut, std::span<const TensorType* const> inputs,
              std::span<const TensorType* const> outputs, Call& call) {
  const TensorType& first = *inputs[0];
  const bool is_cut = !cut.is_whole && first.ndim() == 2;
  call.rows = first.ndim() > 0 ? first.dim(0) : 1;
  call.operand_bytes = 0;
  call.inputs.resize(inputs.size());
  call.outputs.resize(outputs.size());
  call.input_has_rows.assign(inputs.size(), false);
  call.output_has_rows.assign(outputs.size(), false);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    call.input_has_rows[i] = is_cut && !is_whole_input(cut, i, inputs.size());
  for (std::size_t o = 0; o < outputs.size(); ++o)
    call.output_has_rows[o] = is_cut && !cut.sums_rows;
  call.piece_rows = call.rows;
  if (is_cut) {
    Int row_bytes = 0;
    const auto add_row = [&](const TensorType& type, bool has_rows) {
      if (has_rows && type.ndim() > 0 && type.dim(0) > 0)
        row_bytes += type.num_elements() / type.dim(0) * Int{sizeof(float)};
    };
    for (std::size_t i = 0; i < inputs.size(); ++i) add_row(*inputs[i], call.input_has_rows[i]);
    for (std::size_t o = 0; o < outputs.size(); ++o) add_row(*outputs[o], call.output_has_rows[o]);
    const Int fitting = kPieceBytes / std::max<Int>(row_bytes, 1) / kRowBlock * kRowBlock;
    call.piece_rows = std::min(call.rows, std::max(fitting, kRowBlock));
  }
  const auto widen = [&](const TensorType& from, bool has_rows, TensorType& to) {
    to = from;
    if (has_rows) to.shape[0] = call.piece_rows;
    if (!is_half(from)) return;
    to.dtype = DType::kFloat32;
    call.operand_bytes += widened_bytes(to);
  };
  for (std::size_t i = 0; i < inputs.size(); ++i)
    widen(*inputs[i], call.input_has_rows[i], call.inputs[i]);
  for (std::size_t o = 0; o < outputs.size(); ++o)
    widen(*outputs[o], call.output_has_rows[o], call.outputs[o]);
}

// The scratch of a thread that runs calls. It keeps its memory from call to call, so that a step
// allocates nothing.
struct Scratch {
  std::vector<const TensorType*> inputs{}, outputs{};
  Call call{};
  std::vector<TensorView> input_views{}, output_views{};

  static Scratch& of_thread() {
    thread_local Scratch scratch;
    return scratch;
  }
};

const spec::Attributes& to_nearest() {
  static const spec::Attributes attributes{{"rounding", std::string("even")}};
  return attributes;
}

// One row of the table.
class WidenedRow {
 public:
  WidenedRow(const Kernel& inner, const CutOp& cut, void (*caster)(const Arguments&))
      : inner_(inner), cut_(cut), cast_(caster), name_(fmt::format("{}{}", inner.name, kSuffix)) {}

  // `this` has to stay where it is.
  Kernel kernel() const {
    Kernel kernel;
    kernel.name = name_;
    kernel.op = inner_.op;
    kernel.supports = decltype(kernel.supports)::bind<&WidenedRow::supports>(*this);
    kernel.workspace_bytes =
        decltype(kernel.workspace_bytes)::bind<&WidenedRow::workspace_bytes>(*this);
    kernel.prepare = nullptr;  // results of pieces are read at once: they stay in the caches
    kernel.run = decltype(kernel.run)::bind<&WidenedRow::run>(*this);
    return kernel;
  }

 private:
  static Call call_of(const CutOp& cut, const spec::Problem& problem) {
    std::vector<const TensorType*> inputs, outputs;
    for (const TensorType& type : problem.inputs) inputs.push_back(&type);
    for (const TensorType& type : problem.outputs) outputs.push_back(&type);
    Call call;
    describe(cut, inputs, outputs, call);
    return call;
  }
  static spec::Problem problem_of(const Call& call, const spec::Problem& whole) {
    spec::Problem problem = whole;
    problem.inputs = call.inputs;
    problem.outputs = call.outputs;
    return problem;
  }

  Support supports(const spec::Problem& problem) const {
    bool has_f16 = false;
    for (const std::span<const TensorType> types : {problem.inputs, problem.outputs})
      for (const TensorType& type : types) {
        has_f16 |= type.dtype == DType::kFloat16;
        if (type.is_quantized() || (is_half(type) && type.layout != kRowMajor))
          return no(fmt::format("expected rows of plain elements, got {}", to_string(type)));
      }
    if (!has_f16) return no("no operand is f16");
    const Call call = call_of(cut_, problem);
    return inner_.supports(problem_of(call, problem));
  }

  Int workspace_bytes(const spec::Problem& problem) const {
    const Call call = call_of(cut_, problem);
    return call.operand_bytes + (inner_.workspace_bytes != nullptr
                                     ? inner_.workspace_bytes(problem_of(call, problem))
                                     : 0);
  }

  void run(const Arguments& args) const {
    Scratch& scratch = Scratch::of_thread();
    auto& [inputs, outputs, call, input_views, output_views] = scratch;
    inputs.clear();
    outputs.clear();
    for (const TensorView& view : args.inputs) inputs.push_back(view.type);
    for (const TensorView& view : args.outputs) outputs.push_back(view.type);
    describe(cut_, inputs, outputs, call);
    input_views.resize(args.inputs.size());
    output_views.resize(args.outputs.size());
    const auto num_outputs = args.outputs.size();
    ANABATIC_CHECK(num_outputs <= kMostOutputs, "[{}] {} outputs", name_, num_outputs);
    std::array<bool, kMostOutputs> adds_to{};
    for (Int begin = 0; begin == 0 || begin < call.rows;
         begin += std::max<Int>(call.piece_rows, 1)) {
      set_rows(call, std::min(call.piece_rows, call.rows - begin));
      std::byte* workspace = args.workspace;
      const auto place = [&](const TensorView& whole, const TensorType& type, bool has_rows) {
        TensorView view{.data = whole.data, .type = &type};
        if (is_half(*whole.type)) {
          view.data = workspace;
          workspace += widened_bytes(type);
        } else if (has_rows) {
          view.data += begin * row_bytes(*whole.type);
        }
        return view;
      };
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        input_views[i] = place(args.inputs[i], call.inputs[i], call.input_has_rows[i]);
        convert(piece(args.inputs[i], call.input_has_rows[i], begin), *inputs[i], input_views[i],
                args.launch);
      }
      for (std::size_t o = 0; o < num_outputs; ++o) {
        output_views[o] = place(args.outputs[o], call.outputs[o], call.output_has_rows[o]);
        adds_to[o] = adds(args, o) || (cut_.sums_rows && begin > 0);
        if (adds_to[o])
          convert(piece(args.outputs[o], call.output_has_rows[o], begin), *outputs[o],
                  output_views[o], args.launch);
      }
      Arguments inner = args;
      inner.inputs = input_views;
      inner.outputs = output_views;
      inner.workspace = args.workspace + call.operand_bytes;
      inner.accumulate = {adds_to.data(), num_outputs};
      inner_.run(inner);
      for (std::size_t o = 0; o < num_outputs; ++o)
        convert_back(output_views[o], *outputs[o],
                     piece(args.outputs[o], call.output_has_rows[o], begin), args.launch);
    }
  }

  static constexpr std::size_t kMostOutputs = 8;

  static Int row_bytes(const TensorType& type) {
    return type.dim(0) > 0 ? type.num_elements() / type.dim(0) * size_bytes(type.dtype) : 0;
  }
  static std::byte* piece(const TensorView& whole, bool has_rows, Int begin) {
    return whole.data + (has_rows ? begin * row_bytes(*whole.type) : 0);
  }
  static void set_rows(Call& call, Int rows) {
    for (std::size_t i = 0; i < call.inputs.size(); ++i)
      if (call.input_has_rows[i]) call.inputs[i].shape[0] = rows;
    for (std::size_t o = 0; o < call.outputs.size(); ++o)
      if (call.output_has_rows[o]) call.outputs[o].shape[0] = rows;
  }

  // Elements of 16 bits at `from` to an f32 view, and back.
  void convert(std::byte* from, const TensorType& type, const TensorView& to,
               const Launch& launch) const {
    if (is_half(type)) cast(from, type.dtype, to.data, DType::kFloat32, *to.type, launch);
  }
  void convert_back(const TensorView& from, const TensorType& type, std::byte* to,
                    const Launch& launch) const {
    if (is_half(type)) cast(from.data, DType::kFloat32, to, type.dtype, *from.type, launch);
  }
  void cast(std::byte* from, DType from_dtype, std::byte* to, DType to_dtype,
            const TensorType& shape, const Launch& launch) const {
    thread_local TensorType source, target;
    source = target = shape;
    source.dtype = from_dtype;
    target.dtype = to_dtype;
    const TensorView input{.data = from, .type = &source}, output{.data = to, .type = &target};
    cast_({.inputs = {&input, 1},
           .outputs = {&output, 1},
           .attributes = &to_nearest(),
           .workspace = nullptr,
           .prepared = nullptr,
           .accumulate = {},
           .launch = launch});
  }

  const Kernel& inner_;
  const CutOp& cut_;
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
      const CutOp* cut = find_cut(row.op);
      // Those of bf16 pairs have no form in f32.
      if (cut == nullptr || row.name.ends_with("_avx512_bf16")) continue;
      rows.emplace_back(row, *cut, cast_of(row.name));
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
