// SPDX-License-Identifier: Apache-2.0
// The benchmarks by kind. Each reads its sizes. Useful FLOPs and bytes are counted from the sizes,
// not from what a program does.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "bench/benchmark.h"

namespace anabatic::bench {

// x [rows, in] · weightᵀ, weight [out, in].
std::unique_ptr<Benchmark> make_gemm(const train::RunConfig&, Settings&, bool accumulate);
// Bytes of "total": 8 for each parameter of an expert (two bf16 reads and the fp32 gradient). That
// is the lower bound when an expert has few rows.
std::unique_ptr<Benchmark> make_moe(const train::RunConfig&, Settings&, bool accumulate);
// `top_k` different experts of a token, drawn one after the other by popularity (rank + 1)^-zipf.
std::vector<std::int64_t> choose_experts(std::int64_t experts, std::int64_t top_k, double zipf,
                                         std::int64_t token);
// FLOPs count unmasked pairs: two products forward, five backward.
std::unique_ptr<Benchmark> make_attention(const train::RunConfig&, Settings&, bool accumulate);
std::unique_ptr<Benchmark> make_norm(const train::RunConfig&, Settings&, bool accumulate);
// FLOPs count the rows with an unmasked label.
std::unique_ptr<Benchmark> make_loss(const train::RunConfig&, Settings&, bool accumulate);
// Bytes: weight and moments read and written, gradient read, the bf16 copy written.
std::unique_ptr<Benchmark> make_optimizer(const train::RunConfig&, Settings&, bool accumulate);
// What int8 products quantise, and packings of weights: bytes are read and written. Parts are told
// as multiples of the product that does so. Products at several fallbacks are told as multiples of
// those without.
std::unique_ptr<Benchmark> make_quantize(const train::RunConfig&, Settings&, bool accumulate);
// Element i of x [rows, columns]: `value`, with outliers in 16 rows at once, each in another one of
// 16 columns. Then about the same share of blocks falls back along rows and along columns. A kernel
// multiplies second values of whole tiles, so they lie together.
float with_outliers(float value, std::int64_t i, std::int64_t columns);
// Products with a sparse weight, and with a dense one of its shape. FLOPs count present weights.
std::unique_ptr<Benchmark> make_sparse(const train::RunConfig&, Settings&, bool accumulate);
// Counts model FLOPs. Compared with `ref` on a few tokens, all gradients together.
std::unique_ptr<Benchmark> make_step(const train::RunConfig&, Settings&, bool accumulate);

}  // namespace anabatic::bench
