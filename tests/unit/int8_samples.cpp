// SPDX-License-Identifier: Apache-2.0
#include "int8_samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/philox.h"
#include "device/thread_team.h"
#include "support/rows_under_test.h"

namespace anabatic::kernels::cpu::samples {

using Int = std::int64_t;

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

std::vector<const GemmEngine*> int8_engines() {
  const spec::DeviceSpec device{.instruction_sets = testing::instruction_sets()};
  std::vector<const GemmEngine*> found;
  for (const GemmEngine* engine :
       {gemm_int8_portable(), gemm_int8_avx2(), gemm_int8_avx_vnni(), gemm_int8_avx512_vnni()})
    if (usable(engine, device)) found.push_back(engine);
  return found;
}

std::vector<const Int8Coding*> int8_codings() {
  const spec::DeviceSpec device{.instruction_sets = testing::instruction_sets()};
  std::vector<const Int8Coding*> found{&portable::int8_coding()};
#if defined(__x86_64__)
  if (device.has("avx2")) found.push_back(&avx2::int8_coding());
  if (device.has("avx512f")) found.push_back(&avx512::int8_coding());
#endif
  return found;
}

std::string name_of(const GemmEngine& engine) {
  return engine.isa != nullptr ? engine.isa : "portable";
}

std::vector<float> int8_values(Int lines, Int depth, DType dtype, std::uint64_t stream) {
  std::vector<float> x(at(lines * depth));
  for (Int i = 0; i < lines; ++i)
    for (Int k = 0; k < depth; ++k) {
      const auto n = static_cast<std::uint64_t>(i * depth + k);
      float value = static_cast<float>(random_below(7, stream, n, 1 << 20)) * 0x1p-19f - 1.0f;
      switch ((i + 3 * (k / kInt8Block)) % 11) {
        case 1:
          value *= k % kInt8Block == 5 ? 300.0f : 1.0f;  // an outlier
          break;
        case 3:
          value *= 1e-6f;
          break;
        case 4:
          value = k % 2 == 0 ? 0.0f : -0.0f;
          break;
        case 6:
          value = k % kInt8Block == 2 ? value : 0.0f;
          break;
        case 7:
          value *= 0x1p-130f;  // subnormal
          break;
        default:
          break;
      }
      x[at(i * depth + k)] = dtype == DType::kBFloat16 ? to_float(to_bfloat16(value)) : value;
    }
  return x;
}

Source::Source(const std::vector<float>& x, Int lines, Int depth, DType dtype, bool by_columns)
    : by_columns_(by_columns) {
  for (Int r = 0; r < (by_columns ? depth : lines); ++r)
    for (Int c = 0; c < (by_columns ? lines : depth); ++c) {
      floats.push_back(x[at(by_columns ? c * depth + r : r * depth + c)]);
      narrow.push_back(to_bfloat16(floats.back()));
    }
  source = {.data = dtype == DType::kFloat32 ? reinterpret_cast<std::byte*>(floats.data())
                                             : reinterpret_cast<std::byte*>(narrow.data()),
            .dtype = dtype,
            .rows = by_columns ? depth : lines,
            .columns = by_columns ? lines : depth,
            .stride = by_columns ? lines : depth};
}

Matrix Source::left(int fallback) const {
  Matrix matrix{.data = source.data,
                .dtype = source.dtype,
                .row_stride = by_columns_ ? 1 : source.stride,
                .column_stride = by_columns_ ? source.stride : 1};
  matrix.fallback = fallback;
  return matrix;
}

Matrix Source::right(int fallback) const {
  Matrix matrix{
      .data = source.data, .dtype = source.dtype, .row_stride = source.stride, .column_stride = 1};
  matrix.fallback = fallback;
  return matrix;
}

Storage::Storage(Int num_lines, Int depth, Form form, bool has_second, bool is_transposed)
    : depth_(depth), blocks_(int8_blocks(depth)), form_(form) {
  const bool in_panels = form != Form::kRows;
  const Int panels = ceil_div(num_lines, kInt8Panel);
  const Int count = in_panels ? panels * int8_units(depth) * 64 : num_lines * depth;
  const Int line_blocks = in_panels ? panels * blocks_ * 16 : num_lines * blocks_;
  const Int tile_lines = ceil_div(num_lines, kInt8Block);
  codes.resize(count);
  scales.resize(form == Form::kTiles ? tile_lines * blocks_ : line_blocks);
  tile_stride_ = is_transposed ? 1 : blocks_;
  tile_step_ = is_transposed ? tile_lines : 1;
  lines = {.in_panels = in_panels,
           .codes = codes.data,
           .scales = scales.data,
           .line_stride = depth,
           .scale_stride = blocks_};
  if (in_panels) {
    compensation.resize(line_blocks);
    lines.compensation = compensation.data;
  }
  if (!has_second) return;
  second_codes.resize(count);
  falls_back.resize(line_blocks);
  lines.second_codes = second_codes.data;
  lines.falls_back = falls_back.data;
  if (!in_panels) return;
  second_compensation.resize(line_blocks);
  lines.second_compensation = second_compensation.data;
}

Matrix Storage::weights() const {
  Matrix matrix{.data = reinterpret_cast<const std::byte*>(codes.data), .dtype = DType::kBFloat16};
  matrix.is_packed = true;
  matrix.scales = reinterpret_cast<const std::byte*>(scales.data);
  matrix.scale_stride = tile_stride_;
  matrix.scale_step = tile_step_;
  matrix.compensations = compensation.data;
  return matrix;
}

Int Storage::code_at(Int line, Int k) const {
  if (form_ == Form::kRows) return line * lines.line_stride + k;
  return line / 16 * int8_units(depth_) * 64 + k / 4 * 64 + line % 16 * 4 + k % 4;
}
Int Storage::scale_at(Int line, Int block) const {
  if (form_ == Form::kTiles) return line / kInt8Block * tile_stride_ + block * tile_step_;
  if (form_ == Form::kRows) return line * lines.scale_stride + block;
  return compensation_at(line, block);
}
Int Storage::compensation_at(Int line, Int block) const {
  return (line / 16 * blocks_ + block) * 16 + line % 16;
}
bool Storage::falls_back_at(Int line, Int block) const {
  if (form_ == Form::kRows) return lines.falls_back[scale_at(line, block)] != 0;
  return (lines.falls_back[line / 16 * blocks_ + block] >> line % 16 & 1) != 0;
}

std::vector<float> product_of(const ref::CodedLines& a, const ref::CodedLines& b, float before) {
  std::vector<float> y(at(a.lines * b.lines), before);
  ref::add_int8_product(a, b, y);
  return y;
}

void run_in_workspace(const GemmEngine& engine, const Gemm& whole, const std::vector<Gemm>& gemms,
                      int num_threads) {
  constexpr Int kGuard = 4096;
  device::ThreadTeam team(num_threads);
  const auto count = static_cast<Int>(gemms.size());
  EXPECT_EQ(engine.workspace_bytes(whole) % 64, 0);
  const Int booked = threads_bytes(engine, whole, num_threads) + shared_bytes(engine, whole, count);
  std::vector<std::byte> space(at(booked + kGuard + 64), std::byte{0xFF});
  auto* workspace =
      reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::uintptr_t>(space.data()), 64));
  run_gemms(
      engine, whole, count, [&](Int g) -> const Gemm& { return gemms[at(g)]; }, team, workspace);
  EXPECT_TRUE(std::all_of(workspace + booked, workspace + booked + kGuard, [](std::byte byte) {
    return byte == std::byte{0xFF};
  })) << "written beyond the workspace";
}

}  // namespace anabatic::kernels::cpu::samples
