// SPDX-License-Identifier: Apache-2.0
// Quantises the operands of a call's Gemms before any of their blocks is computed, once however
// many blocks and Gemms read them. Their int8 values lie in workspace that all threads share.
#pragma once
#include "kernels/cpu/int8/coding.h"

namespace anabatic::device {
class ThreadTeam;
}

namespace anabatic::kernels::cpu {

enum class Side { kLeft, kRight };

// Bytes of one operand in int8. `whole`: a Gemm of all rows, or in a weight gradient of the whole
// depth, which `num_groups` Gemms share out.
std::int64_t int8_operand_bytes(const Gemm& whole, Side side, std::int64_t num_groups);
// Bytes that an Int8OperandCoding of such groups takes, if their Gemms have no operand in common.
std::int64_t int8_bytes(const Gemm& whole, std::int64_t num_groups);

class Int8OperandCoding {
 public:
  // Bytes of the tables in addition to operands, of Gemms of `num_products` products each.
  static std::int64_t table_bytes(std::int64_t num_gemms, std::int64_t num_products);

  // `space` is 64-byte aligned.
  Int8OperandCoding(std::byte* space, std::int64_t num_gemms, std::int64_t num_products);

  // Finds room for the operands of Gemm `i`. One that an earlier Gemm has too takes room once.
  void add(const Gemm& gemm, std::int64_t i);
  // The same for one operand of a Gemm, whose place it returns.
  const Int8Lines* add_operand(const Gemm& gemm, Side side) { return find_or_add(gemm, side); }
  // After the last of them. The threads share out the work. `counts` may be null.
  void run(const Int8Coding& coding, device::ThreadTeam& team, CodingCounts* counts);

  // For Gemm::coded of Gemm `i`.
  const Int8Operands* of(std::int64_t i) const { return operands_ + i * num_products_; }

 private:
  struct Coded;  // an operand
  struct Tables;
  const Int8Lines* find_or_add(const Gemm& gemm, Side side);

  Int8Operands* operands_;
  Coded* coded_;
  std::byte* next_;  // free from here on
  std::int64_t num_products_, num_coded_ = 0, num_parts_ = 0;
};

}  // namespace anabatic::kernels::cpu
