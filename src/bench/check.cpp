// SPDX-License-Identifier: Apache-2.0
#include "bench/check.h"

#include <algorithm>
#include <cmath>

#include "anabatic/error.h"
#include "base/error.h"

namespace anabatic::bench {

double relative_bound(const ir::Graph& graph, spec::Precision precision) {
  constexpr double kFloatRoundoff = 0x1.0p-24, kBf16Roundoff = 0x1.0p-8, kFp16Roundoff = 0x1.0p-11;
  std::int64_t longest = 1;
  for (const ir::Value& value : graph.values)
    for (const std::int64_t dim : value.type.shape) longest = std::max(longest, dim);
  const double storage = precision == spec::Precision::kFp32   ? kFloatRoundoff
                         : precision == spec::Precision::kFp16 ? kFp16Roundoff
                                                               : kBf16Roundoff;
  return 2 * std::sqrt(static_cast<double>(graph.nodes.size())) *
         (storage + std::sqrt(static_cast<double>(longest)) * kFloatRoundoff);
}

void Comparison::add_to_sum(std::span<const float> got, std::span<const float> want) {
  ANABATIC_CHECK(got.size() >= want.size(), "[bench] {} values against {}", got.size(),
                 want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double wanted = i < want.size() ? want[i] : 0.0, difference = got[i] - wanted;
    difference_ += difference * difference;
    size_ += wanted * wanted;
  }
}

void Comparison::close_sum(std::string_view name) {
  const double difference = std::sqrt(difference_), size = std::sqrt(size_);
  difference_ = size_ = 0;
  if (!(difference <= worst_.bound * size))
    throw InternalError(
        fmt::format("[bench] {} differs from the reference on {} tokens: expected a relative error "
                    "of at most {:.3g}, got {:.3g}",
                    name, worst_.tokens, worst_.bound, difference / size));
  const double error = size > 0 ? difference / size : 0;
  if (!worst_.tensor.empty() && error <= worst_.error) return;
  worst_.tensor = std::string(name);
  worst_.error = error;
}

void Comparison::add(std::string_view tensor, std::span<const float> got,
                     std::span<const float> want) {
  add_to_sum(got, want);
  close_sum(tensor);
}

}  // namespace anabatic::bench
