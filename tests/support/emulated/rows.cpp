// SPDX-License-Identifier: Apache-2.0
// A machine with AVX-512 and AVX-512-BF16 alone, for a binary whose rows of those are emulated.
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/cpu/gemm.h"
#include "support/rows_under_test.h"

namespace anabatic::testing {
namespace {

class Machine : public ::testing::Environment {
  void SetUp() override {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
      GTEST_SKIP() << "AVX-512 is emulated with AVX2, which this machine has not";
    const bool has_rows = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
    if (has_rows && std::getenv("ANABATIC_EMULATE") == nullptr)
      GTEST_SKIP() << "ops_test runs these rows on this machine; ANABATIC_EMULATE=1 emulates them";
  }
};
const auto* const kMachine = ::testing::AddGlobalTestEnvironment(new Machine);

TEST(EmulatedRows, HaveTheirEngines) {
  EXPECT_NE(kernels::cpu::gemm_avx512(), nullptr);
  EXPECT_NE(kernels::cpu::gemm_avx512_bf16(), nullptr);
}

}  // namespace

std::vector<std::string> instruction_sets() {
  return {"avx512_bf16", "avx512bw", "avx512dq", "avx512f", "avx512vl"};
}

bool is_under_test(std::string_view row) { return row.find("_avx512") != row.npos; }

}  // namespace anabatic::testing
