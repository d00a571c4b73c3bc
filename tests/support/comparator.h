// SPDX-License-Identifier: Apache-2.0
// The one comparison of tensors in tests. Fails on NaN, on an infinity that is not wanted, on other
// shapes or dtypes, and on data that is mostly zero, because zeroes prove nothing.
#pragma once
#include <span>
#include <string>

#include "support/host_tensor.h"

namespace anabatic::testing {

struct Comparison {
  std::string report;  // empty: equal within tolerance
  explicit operator bool() const { return report.empty(); }
};

struct CompareOptions {
  std::string repro;            // one line that runs this comparison again, seed included
  bool zeros_expected = false;  // the wanted values may be mostly zero
};

// |got - want| <= tolerance, element by element. `want.type` is the type that `got` must have;
// want.data may hold values that this dtype cannot.
Comparison compare(const Values& got, const Values& want, std::span<const double> tolerances,
                   const CompareOptions& options = {});

// Equal bytes, for exact data and repeated runs.
Comparison compare_bits(const HostTensor& got, const HostTensor& want,
                        const CompareOptions& options = {});

// How many values of `dtype` lie between a and b, both rounded to it; 0 when equal.
std::int64_t ulp_distance(double a, double b, DType dtype);

}  // namespace anabatic::testing
