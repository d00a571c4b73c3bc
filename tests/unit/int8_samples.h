// SPDX-License-Identifier: Apache-2.0
// Operands of int8 products for tests: values that make the odd cases of quantising, sources and
// weights in memory, and calls of every engine.
#pragma once
#include <string>
#include <vector>

#include "kernels/cpu/gemm_tasks.h"
#include "kernels/cpu/int8/coding.h"
#include "kernels/ref/int8_products.h"

namespace anabatic::kernels::cpu::samples {

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Memory of one alignment, with 64 bytes after it.
template <class T>
struct Aligned {
  std::vector<T> storage;
  T* data = nullptr;
  void resize(std::int64_t count) {
    storage.assign(at(count) + 128 / sizeof(T), T{});
    data = reinterpret_cast<T*>(round_up(reinterpret_cast<std::uintptr_t>(storage.data()), 64));
  }
};

// Equal bits, or both NaN.
bool same(float a, float b);

// Those under test.
std::vector<const GemmEngine*> int8_engines();
std::vector<const Int8Coding*> int8_codings();
std::string name_of(const GemmEngine& engine);

// Deviates, some blocks of which are ruled by one element, and the odd cases.
std::vector<float> int8_values(std::int64_t lines, std::int64_t depth, DType dtype,
                               std::uint64_t stream);

// Lines [lines, depth] in memory, as they are or transposed.
struct Source {
  std::vector<float> floats;
  std::vector<BFloat16> narrow;
  Int8Source source;

  Source(const std::vector<float>& x, std::int64_t lines, std::int64_t depth, DType dtype,
         bool by_columns);
  Source(const Source&) = delete;

  // As an operand of a Gemm whose lines they are.
  Matrix left(int fallback = kNoFallback) const;
  // As a right operand, by columns.
  Matrix right(int fallback = kNoFallback) const;

 private:
  bool by_columns_;
};

// Room for the int8 values of lines, in rows or in panels; kTiles: panels with scales of tiles.
enum class Form { kRows, kPanels, kTiles };
struct Storage {
  Aligned<std::int8_t> codes, second_codes;
  Aligned<std::int32_t> compensation, second_compensation;
  Aligned<BFloat16> scales;
  Aligned<std::uint16_t> falls_back;
  Int8Lines lines;

  // `is_transposed`: of tiles, whose lines are the columns.
  Storage(std::int64_t num_lines, std::int64_t depth, Form form, bool has_second,
          bool is_transposed = false);
  Storage(const Storage&) = delete;

  // Tiles as the right operand of a Gemm.
  Matrix weights() const;

  std::int64_t code_at(std::int64_t line, std::int64_t k) const;
  std::int64_t scale_at(std::int64_t line, std::int64_t block) const;
  std::int64_t compensation_at(std::int64_t line, std::int64_t block) const;
  bool falls_back_at(std::int64_t line, std::int64_t block) const;

 private:
  std::int64_t depth_, blocks_, tile_stride_ = 0, tile_step_ = 0;
  Form form_;
};

// Chains that begin at `before`: y [a.lines, b.lines].
std::vector<float> product_of(const ref::CodedLines& a, const ref::CodedLines& b, float before = 0);

// run_gemms in workspace of its size for Gemms that share out `whole`. A write beyond it fails.
void run_in_workspace(const GemmEngine& engine, const Gemm& whole, const std::vector<Gemm>& gemms,
                      int num_threads);

}  // namespace anabatic::kernels::cpu::samples
