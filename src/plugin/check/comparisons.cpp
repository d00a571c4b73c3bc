// SPDX-License-Identifier: Apache-2.0
#include "plugin/check/comparisons.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace anabatic::plugin::check {
namespace {

struct Bound {
  double share, absolute;
};
constexpr double kMostMoves = 8;
Bound bound_of(double unit) {
  if (unit > roundoff(DType::kFloat32)) return {0x1p-5, 0x1p-7};
  return unit > roundoff(DType::kFloat64) ? Bound{0x1p-14, 0x1p-18} : Bound{0x1p-40, 0x1p-46};
}

std::string element_of(std::int64_t element, std::size_t output, const Operand& operand) {
  return fmt::format("element {} of output {} ({})", element, output, operand.name);
}

bool has_bytes(const Operand& operand, std::int64_t element, std::byte value) {
  const std::int64_t size = size_bytes(operand.type.dtype);
  const std::byte* at = operand.bytes.data() + element * size;
  return std::all_of(at, at + size, [&](std::byte byte) { return byte == value; });
}

}  // namespace

void expect_equal(const Operands& got, const Operands& want, std::string_view kind,
                  std::string_view when, Reporter& reporter) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!got[i].is_given || !want[i].is_given || got[i].bytes == want[i].bytes) continue;
    const auto differs =
        std::mismatch(got[i].bytes.begin(), got[i].bytes.end(), want[i].bytes.begin());
    const std::int64_t element =
        (differs.first - got[i].bytes.begin()) / size_bytes(got[i].type.dtype);
    reporter.fail(kind, fmt::format("gives other bits {}: {} is {:.9g}, then {:.9g}", when,
                                    element_of(element, i, got[i]), value_at(want[i], element),
                                    value_at(got[i], element)));
  }
}

void expect_written(const Operands& first, const Operands& second, Reporter& reporter) {
  for (std::size_t i = 0; i < first.size(); ++i) {
    const std::int64_t count = first[i].is_given ? first[i].type.num_elements() : 0;
    for (std::int64_t k = 0; k < count; ++k)
      if (has_bytes(first[i], k, kSettings[0].poison) &&
          has_bytes(second[i], k, kSettings[1].poison))
        reporter.fail("unwritten", fmt::format("does not write {}", element_of(k, i, first[i])));
  }
}

void expect_near(const Operands& got, const Operands& want, const Operands& moved_results,
                 double unit, std::string_view with, Reporter& reporter) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!got[i].is_given || !is_float(got[i].type.dtype)) continue;
    double most_moved = 0;
    const std::int64_t count = got[i].type.num_elements();
    for (std::int64_t k = 0; k < count; ++k)
      most_moved =
          std::max(most_moved, std::abs(value_at(moved_results[i], k) - value_at(want[i], k)));
    const Bound bound = bound_of(unit);
    const double allowed =
        bound.share * largest(want[i]) + bound.absolute + kMostMoves * most_moved;
    for (std::int64_t k = 0; k < count; ++k) {
      const double a = value_at(got[i], k), b = value_at(want[i], k);
      if (a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= allowed) continue;
      reporter.fail(with, fmt::format("gives another result than {}: {} is {:.6g}, {} {:.6g}; "
                                      "{:.2g} is allowed",
                                      with, element_of(k, i, got[i]), a, with, b, allowed));
    }
  }
}

}  // namespace anabatic::plugin::check
