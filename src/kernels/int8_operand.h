// SPDX-License-Identifier: Apache-2.0
// The part of an int8 product that quantises an operand of activations, alone: for benchmarks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/coding_counts.h"
#include "spec/device_spec.h"
#include "tensor/tensor_type.h"

namespace anabatic::device {
class ThreadTeam;
}

namespace anabatic::kernels {

// What lines of x [T, W] a product multiplies. Rows are those of a forward or an input gradient. A
// weight gradient reads columns: of dy on its left, of x on its right.
enum class Int8OperandForm : std::uint8_t { kRows, kLeftColumns, kRightColumns };

class Int8Operand {
 public:
  // x is f32 or bf16 in rows, and outlives it. `order`: null, or which row of x each of the T rows
  // is. `fallback` as in attributes. By the kernels that products take on `device`.
  Int8Operand(const TensorView& x, const std::int32_t* order, Int8OperandForm form,
              std::int64_t fallback, const spec::DeviceSpec& device);

  std::int64_t workspace_bytes() const;
  // The workspace is 64-byte aligned. `counts` may be null; columns are not counted.
  void quantize(std::byte* workspace, device::ThreadTeam& team, CodingCounts* counts) const;
  // What the int8 values in the workspace stand for, [lines, depth].
  std::vector<double> values(const std::byte* workspace) const;

 private:
  struct Call;

  TensorView x_;
  const std::int32_t* order_;
  Int8OperandForm form_;
  int fallback_;
  spec::DeviceSpec device_;
};

}  // namespace anabatic::kernels
