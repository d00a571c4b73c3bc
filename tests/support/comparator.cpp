// SPDX-License-Identifier: Apache-2.0
#include "support/comparator.h"

#include <fmt/core.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "support/tolerance.h"
#include "tensor/half.h"

namespace anabatic::testing {
namespace {

// Integers in the order of the floats, -0 and +0 alike.
std::int64_t ordered(std::int64_t bits, std::int64_t sign) {
  return bits < sign ? bits : sign - bits;
}

std::int64_t ordered_bits(double value, DType dtype) {
  if (dtype == DType::kFloat64) {
    const auto bits = std::bit_cast<std::int64_t>(value);
    return bits >= 0 ? bits : -(bits & INT64_MAX);
  }
  if (dtype == DType::kBFloat16)
    return ordered(to_bfloat16(static_cast<float>(value)).bits, 0x8000);
  if (dtype == DType::kFloat16) return ordered(to_float16(static_cast<float>(value)).bits, 0x8000);
  if (dtype == DType::kFloat32)
    return ordered(std::bit_cast<std::uint32_t>(static_cast<float>(value)), 0x80000000ll);
  return static_cast<std::int64_t>(value);
}

std::string place(const TensorType& type, std::size_t flat) {
  std::string out;
  auto rest = static_cast<std::int64_t>(flat);
  if (rest >= type.num_elements()) return fmt::format("scale {}", rest - type.num_elements());
  for (std::int64_t axis = type.ndim() - 1; axis >= 0; --axis) {
    out = fmt::format("{}{}{}", rest % type.dim(axis), out.empty() ? "" : ",", out);
    rest /= type.dim(axis);
  }
  return '[' + out + ']';
}

Comparison fail(const std::string& text, const CompareOptions& options) {
  return {text + (options.repro.empty() ? "" : "\n  repro: " + options.repro)};
}

// The numbers have one dtype; `what` names them in the report.
Comparison check_zeros(std::span<const double> got, std::span<const double> want, DType dtype,
                       std::string_view what, const CompareOptions& options) {
  // Values below the normal numbers count as zeroes: kernels may flush them. So do those that f16
  // rounds to 0.
  const double smallest = dtype == DType::kFloat16 ? kHalfStep
                          : is_float(dtype)        ? kSmallestNormal
                                                   : 0;
  std::size_t nonzero_wants = 0, lost = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const bool nonzero = std::abs(want[i]) > smallest;
    nonzero_wants += nonzero ? 1 : 0;
    lost += nonzero && got[i] == 0 ? 1 : 0;
  }
  const auto fraction = [](std::size_t part, std::size_t whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  if (fraction(lost, nonzero_wants) > kZeroTrust)
    return fail(fmt::format("zero trust: got is 0 for {} of {} {} that are wanted nonzero", lost,
                            nonzero_wants, what),
                options);
  const std::size_t zeros = want.size() - nonzero_wants;
  if (!options.zeros_expected && fraction(zeros, want.size()) > 1.0 - kZeroTrust)
    return fail(fmt::format("zero trust: {} of {} wanted {} are 0; the data proves nothing", zeros,
                            want.size(), what),
                options);
  return {};
}

// Elements and scales are checked apart: a tensor has far fewer of the latter.
Comparison check_zeros(const Values& got, const Values& want, const CompareOptions& options) {
  const TensorType& type = want.type;
  const std::span<const double> gots(got.data), wants(want.data);
  if (!type.is_quantized()) return check_zeros(gots, wants, type.dtype, "values", options);
  const auto count = static_cast<std::size_t>(type.num_elements());
  const Comparison elements =
      check_zeros(gots.first(count), wants.first(count), type.dtype, "elements", options);
  if (!elements) return elements;
  return check_zeros(gots.subspan(count), wants.subspan(count), type.blocks->scale, "scales",
                     options);
}

}  // namespace

std::int64_t ulp_distance(double a, double b, DType dtype) {
  return std::llabs(ordered_bits(a, dtype) - ordered_bits(b, dtype));
}

Comparison compare(const Values& got, const Values& want, std::span<const double> tolerances,
                   const CompareOptions& options) {
  if (got.type != want.type || got.data.size() != want.data.size())
    return fail(fmt::format("expected {}, got {}", to_string(want.type), to_string(got.type)),
                options);
  if (tolerances.size() != want.data.size())
    return fail(fmt::format("expected {} tolerances, got {}", want.data.size(), tolerances.size()),
                options);
  std::size_t count = 0, worst = 0;
  double worst_ratio = -1.0;
  for (std::size_t i = 0; i < want.data.size(); ++i) {
    // An infinity minus itself is NaN, which fails below; the wanted infinity is right.
    if (std::isinf(want.data[i]) && got.data[i] == want.data[i]) continue;
    const double error = std::abs(got.data[i] - want.data[i]);
    if (std::isfinite(got.data[i]) && std::isfinite(want.data[i]) && error <= tolerances[i])
      continue;
    ++count;
    const double ratio =
        std::isfinite(error) && tolerances[i] > 0 ? error / tolerances[i] : HUGE_VAL;
    if (ratio > worst_ratio) {
      worst_ratio = ratio;
      worst = i;
    }
  }
  if (count == 0) return check_zeros(got, want, options);
  return fail(
      fmt::format("{} of {} values differ; worst at {} (flat {}): got {:.9g}, want {:.9g}, "
                  "|error| {:.3g} > tolerance {:.3g}, {} ULPs of {}",
                  count, want.data.size(), place(want.type, worst), worst, got.data[worst],
                  want.data[worst], std::abs(got.data[worst] - want.data[worst]), tolerances[worst],
                  ulp_distance(got.data[worst], want.data[worst], dtype_at(want.type, worst)),
                  to_string(dtype_at(want.type, worst))),
      options);
}

Comparison compare_bits(const HostTensor& got, const HostTensor& want,
                        const CompareOptions& options) {
  if (got.type() != want.type())
    return fail(fmt::format("expected {}, got {}", to_string(want.type()), to_string(got.type())),
                options);
  const Values got_values = got.values(), want_values = want.values();
  if (got.same_bits(want)) return check_zeros(got_values, want_values, options);
  std::size_t count = 0, first = 0;
  for (std::size_t i = got_values.data.size(); i-- > 0;) {
    const auto a = got.value_bytes(static_cast<std::int64_t>(i));
    const auto b = want.value_bytes(static_cast<std::int64_t>(i));
    if (std::equal(a.begin(), a.end(), b.begin())) continue;
    ++count;
    first = i;
  }
  return fail(
      fmt::format(
          "{} of {} values have other bits; first at {} (flat {}): got {:.9g}, want {:.9g}, "
          "tolerance 0, {} ULPs of {}",
          count, got_values.data.size(), place(got.type(), first), first, got_values.data[first],
          want_values.data[first],
          ulp_distance(got_values.data[first], want_values.data[first],
                       dtype_at(got.type(), first)),
          to_string(dtype_at(got.type(), first))),
      options);
}

}  // namespace anabatic::testing
