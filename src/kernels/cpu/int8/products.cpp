// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/int8/products.h"

#include <algorithm>

#include "base/error.h"
#include "device/thread_team.h"
#include "kernels/cpu/gemm_tasks.h"
#include "kernels/cpu/int8/coding.h"

namespace anabatic::kernels::cpu {
namespace {

// Rows of an area: few enough that they stay in the second cache while strips of columns go by.
constexpr std::int64_t kMostRows = 256, kMostPanelRows = 64, kFewestColumns = 96, kColumnStep = 48,
                       kRowStep = 16;

void check(const Int8Product& product) {
  const Int8Lines &a = product.a, &b = product.b;
  ANABATIC_CHECK(b.in_panels() && b.compensation != nullptr,
                 "[int8 product] expected panels with compensation as the right operand");
  ANABATIC_CHECK(a.second_codes == nullptr || (!a.in_panels() && b.second_codes == nullptr),
                 "[int8 product] expected second values of rows or of the right operand");
  ANABATIC_CHECK(product.c_dtype == DType::kFloat32 ||
                     (product.c_dtype == DType::kBFloat16 && !product.accumulate),
                 "[int8 product] expected f32, or bf16 without +=, got {}",
                 to_string(product.c_dtype));
  ANABATIC_CHECK(!product.streams ||
                     (reinterpret_cast<std::uintptr_t>(product.c) % 64 == 0 &&
                      product.c_stride % kInt8Panel == 0 && product.c_dtype == DType::kFloat32),
                 "[int8 product] expected an aligned f32 C to stream to");
}

}  // namespace

const Int8Engine& int8_engine(const spec::DeviceSpec& device) {
  for (const Int8Engine* engine : {int8_avx512_vnni(), int8_avx2()})
    if (engine != nullptr && device.has(engine->isa)) return *engine;
  return *int8_portable();
}

const Int8Coding& int8_coding([[maybe_unused]] const spec::DeviceSpec& device) {
#if defined(ANABATIC_CPU_X86)
  if (device.has("avx512f")) return avx512::int8_coding();
  if (device.has("avx2")) return avx2::int8_coding();
#endif
  return portable::int8_coding();
}

void run_int8_product(const Int8Engine& engine, const Int8Product& product,
                      device::ThreadTeam& team) {
  check(product);
  if (product.rows <= 0 || product.columns <= 0) return;
  const std::int64_t most_rows = product.a.in_panels() ? kMostPanelRows : kMostRows;
  const std::int64_t threads = team.num_threads();
  std::int64_t rows = even_part(product.rows, most_rows, kRowStep), columns = product.columns;
  const auto num_areas = [&] {
    return ceil_div(product.rows, rows) * ceil_div(product.columns, columns);
  };
  while (threads > 1 && num_areas() < 4 * threads && columns >= 2 * kFewestColumns)
    columns = round_up(ceil_div(columns, std::int64_t{2}), kColumnStep);
  while (threads > 1 && num_areas() < 2 * threads && rows >= 2 * kRowStep)
    rows = round_up(ceil_div(rows, std::int64_t{2}), kRowStep);
  const std::int64_t row_areas = ceil_div(product.rows, rows);
  team.for_tasks(num_areas(), [&](std::int64_t task, int) {
    const std::int64_t i = task % row_areas * rows, j = task / row_areas * columns;
    engine.compute(product, {.row_begin = i,
                             .row_end = std::min(product.rows, i + rows),
                             .column_begin = j,
                             .column_end = std::min(product.columns, j + columns)});
  });
}

}  // namespace anabatic::kernels::cpu
