// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm.h"

namespace anabatic::kernels::cpu {

// With 2^b >= divisor and s = 31 + b, m = floor(2^s / divisor) + 1 exceeds 2^s / divisor by at most
// 1, so i · m / 2^s exceeds i / divisor by less than i / 2^s < 1 / divisor: the floors agree. m is
// below 2^33, so i · m < 2^64.
RowIndex row_index(const std::int32_t* data, std::int64_t divisor) {
  int bits = 0;
  while (std::int64_t{1} << bits < divisor) ++bits;
  const int shift = 31 + bits;
  return {.data = data,
          .multiplier = (std::uint64_t{1} << shift) / static_cast<std::uint64_t>(divisor) + 1,
          .shift = shift};
}

bool usable(const GemmEngine* engine, const spec::DeviceSpec& device) {
  return engine != nullptr && (engine->isa == nullptr || device.has(engine->isa));
}

}  // namespace anabatic::kernels::cpu
