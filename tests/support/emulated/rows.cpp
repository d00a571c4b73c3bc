// SPDX-License-Identifier: Apache-2.0
// A machine with AVX-512, AVX-512-BF16, AMX and AVX-VNNI alone, for a binary whose rows of those
// are emulated.
#include <gtest/gtest.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/int8/lines.h"
#include "support/rows_under_test.h"

namespace anabatic::testing {
namespace {

class NeedsAvx2 : public ::testing::Environment {
  void SetUp() override {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
      GTEST_SKIP() << "AVX-512 is emulated with AVX2, which this machine has not";
  }
};
const auto* const kNeedsAvx2 = ::testing::AddGlobalTestEnvironment(new NeedsAvx2);

TEST(EmulatedRows, HaveTheirEngines) {
  EXPECT_NE(kernels::cpu::gemm_avx512(), nullptr);
  EXPECT_NE(kernels::cpu::gemm_avx512_bf16(), nullptr);
  EXPECT_NE(kernels::cpu::gemm_amx_bf16(), nullptr);
  EXPECT_NE(kernels::cpu::gemm_int8_avx512_vnni(), nullptr);
  EXPECT_NE(kernels::cpu::gemm_int8_avx_vnni(), nullptr);
}

}  // namespace

std::vector<std::string> instruction_sets() {
  return {"amx_bf16", "avx512_bf16", "avx512_vnni", "avx512bw",
          "avx512dq", "avx512f",     "avx512vl",    "avx_vnni"};
}

bool is_under_test(std::string_view row) {
  return row.find("_avx512") != row.npos || row.find("_amx") != row.npos ||
         row.find("_avx_vnni") != row.npos;
}

}  // namespace anabatic::testing
