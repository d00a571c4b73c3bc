// SPDX-License-Identifier: Apache-2.0
// Bounds for the difference of a program's results from those of the same program on `ref` kernels.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "bench/benchmark.h"
#include "ir/graph.h"
#include "spec/training.h"

namespace anabatic::bench {

// Relative to a whole tensor in the 2-norm: 2·√n·(u + √K·2⁻²⁴). Each of the n nodes rounds what it
// stores once, to unit roundoff u (bf16: 2⁻⁸, f32: 2⁻²⁴), and sums at most K terms in f32, whose
// error grows as √K (Higham and Mary, 2019); errors of nodes are independent and add as a random
// walk. Twice, since both sides have them.
double relative_bound(const ir::Graph& graph, spec::Precision precision);

// Keeps the worst of several comparisons, by error / bound.
class Comparison {
 public:
  Comparison(double bound, std::int64_t tokens) : worst_{.bound = bound, .tokens = tokens} {}

  // `got` may be longer than `want`: the rest must be zero. Error naming the tensor, the error and
  // the bound if got exceeds it; a value that is not finite does.
  void add(std::string_view tensor, std::span<const float> got, std::span<const float> want);
  // The same for tensors that count as one: add_to_sum for each, then close_sum.
  void add_to_sum(std::span<const float> got, std::span<const float> want);
  void close_sum(std::string_view name);
  const Check& worst() const { return worst_; }

 private:
  Check worst_;
  double difference_ = 0, size_ = 0;  // squares
};

}  // namespace anabatic::bench
