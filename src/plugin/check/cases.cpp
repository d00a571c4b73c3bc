// SPDX-License-Identifier: Apache-2.0
#include "plugin/check/cases.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/philox.h"

namespace anabatic::plugin::check {
namespace {

constexpr std::array kFloatTypes{DType::kFloat64, DType::kFloat32, DType::kBFloat16};
constexpr std::array<std::int64_t, 6> kSizes{7, 64, 1, 33, 0, 1000};
constexpr std::array<std::int64_t, 2> kBases{7, 64};
constexpr std::array<std::int64_t, 4> kMixed{1, 33, 7, 64};
constexpr std::int64_t kMostElements = std::int64_t{1} << 18;  // of an operand

bool is_number(const std::string& dim) { return dim[0] >= '0' && dim[0] <= '9'; }

std::vector<std::string> dimensions_of(std::span<const OperandSpec> inputs) {
  std::vector<std::string> dims;
  for (const OperandSpec& input : inputs)
    for (const std::string& dim : input.shape)
      if (!is_number(dim) && std::find(dims.begin(), dims.end(), dim) == dims.end())
        dims.push_back(dim);
  return dims;
}

// Sizes of all dimensions, in their order.
std::vector<std::vector<std::int64_t>> sizes_of(std::size_t num_dims) {
  std::vector<std::vector<std::int64_t>> result;
  const auto add = [&](const std::vector<std::int64_t>& sizes) {
    if (std::find(result.begin(), result.end(), sizes) == result.end()) result.push_back(sizes);
  };
  for (const std::int64_t size : kSizes) add(std::vector<std::int64_t>(num_dims, size));
  for (const std::int64_t base : kBases)
    for (std::size_t dim = 0; dim < num_dims; ++dim)
      for (const std::int64_t size : kSizes) {
        std::vector<std::int64_t> sizes(num_dims, base);
        sizes[dim] = size;
        add(sizes);
      }
  for (std::size_t first = 0; first < kMixed.size(); ++first) {
    std::vector<std::int64_t> sizes;
    for (std::size_t dim = 0; dim < num_dims; ++dim)
      sizes.push_back(kMixed[(first + dim) % kMixed.size()]);
    add(sizes);
  }
  return result;
}

bool takes_floats(const OperandSpec& operand) {
  return std::any_of(kFloatTypes.begin(), kFloatTypes.end(),
                     [&](DType dtype) { return operand.takes(dtype); });
}

DType dtype_of(const OperandSpec& operand, DType wanted) {
  if (operand.takes(wanted)) return wanted;
  for (const DType dtype : kFloatTypes)
    if (operand.takes(dtype)) return dtype;
  return DType::kInt32;
}

// Those of the cases: each that an operand takes. An op without floats is checked once.
std::vector<DType> dtypes_of_cases(std::span<const OperandSpec> inputs) {
  std::vector<DType> result;
  for (const DType dtype : kFloatTypes)
    if (std::any_of(inputs.begin(), inputs.end(),
                    [&](const OperandSpec& input) { return input.takes(dtype); }))
      result.push_back(dtype);
  if (result.empty()) result.push_back(DType::kInt32);
  return result;
}

}  // namespace

std::int64_t size_of(const std::string& dim, const Case& one) {
  return is_number(dim) ? std::stoll(dim) : one.sizes.at(dim);
}

std::vector<TensorType> input_types(std::span<const OperandSpec> inputs, const Case& one) {
  std::vector<TensorType> types;
  for (const OperandSpec& input : inputs) {
    TensorType type{.dtype = dtype_of(input, one.dtype)};
    for (const std::string& dim : input.shape) type.shape.push_back(size_of(dim, one));
    types.push_back(std::move(type));
  }
  return types;
}

std::vector<Case> cases_of(std::span<const OperandSpec> inputs) {
  const std::vector<std::string> dims = dimensions_of(inputs);
  const auto fits = [](const TensorType& type) { return type.num_elements() <= kMostElements; };
  std::vector<Case> cases;
  for (const DType dtype : dtypes_of_cases(inputs))
    for (const std::vector<std::int64_t>& sizes : sizes_of(dims.size())) {
      Case one{.dtype = dtype};
      for (std::size_t i = 0; i < dims.size(); ++i) one.sizes[dims[i]] = sizes[i];
      const std::vector<TensorType> types = input_types(inputs, one);
      if (std::all_of(types.begin(), types.end(), fits)) cases.push_back(std::move(one));
    }
  return cases;
}

std::string to_string(const Case& one, std::span<const OperandSpec> inputs) {
  std::string text(anabatic::to_string(one.dtype));
  for (const std::string& dim : dimensions_of(inputs))
    text += fmt::format("{}{}={}", text.find('=') == std::string::npos ? ", " : " ", dim,
                        one.sizes.at(dim));
  return text;
}

std::optional<DType> reference_dtype(std::span<const OperandSpec> inputs) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32})
    if (std::all_of(inputs.begin(), inputs.end(), [&](const OperandSpec& input) {
          return !takes_floats(input) || input.takes(dtype);
        }))
      return dtype;
  return std::nullopt;
}

std::optional<Operands> random_inputs(std::span<const OperandSpec> inputs, const Case& one,
                                      std::uint64_t seed) {
  const std::vector<TensorType> types = input_types(inputs, one);
  Operands made;
  for (std::size_t i = 0; i < types.size(); ++i) {
    const OperandSpec& input = inputs[i];
    if (is_float(types[i].dtype)) {
      made.push_back(random_floats(types[i], input.name, seed, i));
      if (seed % 2 == 1) make_positive(made.back());
      continue;
    }
    made.push_back(zeros(types[i], input.name));
    if (input.below.empty()) continue;
    const std::int64_t count = types[i].num_elements(), limit = size_of(input.below, one);
    if (count > 0 && limit == 0) return std::nullopt;
    for (std::int64_t k = 0; k < count; ++k)
      set_value(made.back(), k,
                static_cast<double>(random_below(seed, i, static_cast<std::uint64_t>(k),
                                                 static_cast<std::uint64_t>(limit))));
  }
  return made;
}

}  // namespace anabatic::plugin::check
