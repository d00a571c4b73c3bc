// SPDX-License-Identifier: Apache-2.0
#include "kernels/int8_operand.h"

#include "base/error.h"
#include "kernels/cpu/int8/operands.h"

namespace anabatic::kernels {
namespace {

using Int = std::int64_t;

cpu::Side side_of(Int8OperandForm form) {
  return form == Int8OperandForm::kRightColumns ? cpu::Side::kRight : cpu::Side::kLeft;
}

// That of the engine that products take. Rows of AVX-VNNI quantise as those of AVX2.
const cpu::Int8Coding& coding_of(const spec::DeviceSpec& device) {
  for (const cpu::GemmEngine* engine : {cpu::gemm_int8_avx512_vnni(), cpu::gemm_int8_avx2()})
    if (usable(engine, device)) return engine->coding();
  return cpu::gemm_int8_portable()->coding();
}

}  // namespace

// A Gemm of which the operand is one side. It has no result.
struct Int8Operand::Call {
  explicit Call(const Int8Operand& of) : side(side_of(of.form_)) {
    const Int rows = of.x_.type->dim(0), columns = of.x_.type->dim(1);
    const bool by_rows = of.form_ == Int8OperandForm::kRows;
    (side == cpu::Side::kLeft ? gemm.rows : gemm.columns) = by_rows ? rows : columns;
    gemm.depth = by_rows ? columns : rows;
    cpu::Matrix& matrix = side == cpu::Side::kLeft ? gemm.a : gemm.b;
    matrix.data = of.x_.data;
    matrix.dtype = of.x_.type->dtype;
    matrix.fallback = of.fallback_;
    const bool is_turned = of.form_ == Int8OperandForm::kLeftColumns;
    matrix.row_stride = is_turned ? 1 : columns;
    matrix.column_stride = is_turned ? columns : 1;
    if (of.order_ != nullptr) matrix.index = cpu::row_index(of.order_, 1);
  }

  cpu::Side side;
  cpu::Gemm gemm;
};

Int8Operand::Int8Operand(const TensorView& x, const std::int32_t* order, Int8OperandForm form,
                         std::int64_t fallback, const spec::DeviceSpec& device)
    : x_(x),
      order_(order),
      form_(form),
      fallback_(static_cast<int>(std::min(fallback, Int{cpu::kNoFallback}))),
      device_(device) {
  ANABATIC_CHECK(x.type->ndim() == 2 && x.type->layout == kRowMajor && !x.type->is_quantized() &&
                     (x.type->dtype == DType::kFloat32 || x.type->dtype == DType::kBFloat16),
                 "[int8 operand] expected a matrix in f32 or bf16, got {}", to_string(*x.type));
}

std::int64_t Int8Operand::workspace_bytes() const {
  const Call call(*this);
  return cpu::Int8OperandCoding::table_bytes(1, 1) +
         cpu::int8_operand_bytes(call.gemm, call.side, 1);
}

void Int8Operand::quantize(std::byte* workspace, device::ThreadTeam& team,
                           CodingCounts* counts) const {
  const Call call(*this);
  cpu::Int8OperandCoding coding(workspace, 1, 1);
  coding.add_operand(call.gemm, call.side);
  coding.run(coding_of(device_), team, counts);
}

std::vector<double> Int8Operand::values(const std::byte* workspace) const {
  const Call call(*this);
  // Finds where the arrays lie. It writes tables alone, with what they have already.
  cpu::Int8OperandCoding coding(const_cast<std::byte*>(workspace), 1, 1);
  const cpu::Int8Lines& lines = *coding.add_operand(call.gemm, call.side);
  const Int num_lines = call.side == cpu::Side::kLeft ? call.gemm.rows : call.gemm.columns,
            depth = call.gemm.depth, blocks = cpu::int8_blocks(depth);
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(num_lines * depth));
  for (Int line = 0; line < num_lines; ++line) {
    const Int panel = line / cpu::kInt8Panel, lane = line % cpu::kInt8Panel;
    for (Int k = 0; k < depth; ++k) {
      const Int block = k / cpu::kInt8Block;
      const Int code =
          lines.in_panels
              ? ((panel * cpu::int8_units(depth) + k / cpu::kInt8Unit) * cpu::kInt8Panel + lane) *
                        cpu::kInt8Unit +
                    k % cpu::kInt8Unit
              : line * lines.line_stride + k;
      const Int scale = lines.in_panels ? (panel * blocks + block) * cpu::kInt8Panel + lane
                                        : line * lines.scale_stride + block;
      const bool falls_back =
          lines.falls_back != nullptr &&
          (lines.in_panels ? lines.falls_back[panel * blocks + block] >> lane & 1
                           : lines.falls_back[line * lines.scale_stride + block]) != 0;
      values.push_back(static_cast<double>(to_float(lines.scales[scale])) *
                       (lines.codes[code] + (falls_back ? lines.second_codes[code] / 254.0 : 0.0)));
    }
  }
  return values;
}

}  // namespace anabatic::kernels
