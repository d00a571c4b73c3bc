// SPDX-License-Identifier: Apache-2.0
#include "model/lora/merged_weights.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace anabatic::model {
namespace {

std::size_t num_elements_of(const std::vector<std::int64_t>& shape) {
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  return count;
}

// Columns of the weight that a part is of.
std::int64_t width_of(const AdapterGroup& group, const AdapterPart& part) {
  return group.is_table() ? part.rows : group.columns;
}

// Adds elements [begin, begin + sums.size()) of a row of what the adapter changes, the row counted
// through all experts.
void add_row(const AdapterValues& values, const AdapterGroup& group, const AdapterPart& part,
             std::int64_t row, std::int64_t begin, std::span<double> sums) {
  if (group.is_table()) {
    const float* a = values.of(group.a()).data() + row * group.rank;
    const float* b = values.of(part.b()).data() + begin * group.rank;
    for (std::size_t c = 0; c < sums.size(); ++c)
      for (std::int64_t j = 0; j < group.rank; ++j)
        sums[c] += static_cast<double>(a[j]) * b[static_cast<std::int64_t>(c) * group.rank + j];
    return;
  }
  const std::int64_t expert = row / part.rows;
  const float* b = values.of(part.b()).data() + row * group.rank;
  const float* a = values.of(group.a()).data() + expert * group.rank * group.columns + begin;
  for (std::int64_t j = 0; j < group.rank; ++j)
    for (std::size_t c = 0; c < sums.size(); ++c)
      sums[c] += static_cast<double>(b[j]) * a[j * group.columns + static_cast<std::int64_t>(c)];
}

}  // namespace

AdapterValues::AdapterValues(Adapter adapter) : adapter_(std::move(adapter)) {
  for (const AdapterGroup& group : adapter_.groups) {
    values_[group.a()].resize(num_elements_of(group.a_shape()));
    for (const AdapterPart& part : group.parts)
      values_[part.b()].resize(num_elements_of(group.b_shape(part)));
  }
}

StateWriter AdapterValues::writer() {
  return [this](std::string_view state, std::int64_t first, std::span<const float> values) {
    const auto found = values_.find(state);
    ANABATIC_CHECK(found != values_.end() &&
                       static_cast<std::size_t>(first) + values.size() <= found->second.size(),
                   "[lora] no elements from {} on of {}", first, state);
    std::ranges::copy(values, found->second.begin() + first);
  };
}

std::span<const float> AdapterValues::of(std::string_view state) const {
  const auto found = values_.find(state);
  ANABATIC_CHECK(found != values_.end(), "[lora] no values of {}", state);
  return found->second;
}

StateReader AdapterValues::reader() const {
  return [this](std::string_view state, std::int64_t first, std::span<float> values) {
    std::ranges::copy(of(state).subspan(static_cast<std::size_t>(first), values.size()),
                      values.begin());
  };
}

StateReader merged_reader(StateReader source, const AdapterValues& adapter) {
  return [source = std::move(source), &adapter](std::string_view state, std::int64_t first,
                                                std::span<float> values) {
    source(state, first, values);
    const AdapterGroup* group = adapter.adapter().find(state);
    if (group == nullptr) return;
    const AdapterPart& part = *std::ranges::find(group->parts, state, &AdapterPart::parameter);
    const double scale = group->scale();
    const std::int64_t width = width_of(*group, part);
    std::vector<double> sums;
    for (std::size_t done = 0; done < values.size();) {
      const std::int64_t at = first + static_cast<std::int64_t>(done), begin = at % width;
      const std::size_t count =
          std::min(static_cast<std::size_t>(width - begin), values.size() - done);
      sums.assign(count, 0.0);
      add_row(adapter, *group, part, at / width, begin, sums);
      for (std::size_t i = 0; i < count; ++i)
        values[done + i] = static_cast<float>(values[done + i] + scale * sums[i]);
      done += count;
    }
  };
}

double norm_of_change(const AdapterValues& adapter, const AdapterGroup& group) {
  double squares = 0;
  std::vector<double> sums;
  for (const AdapterPart& part : group.parts) {
    const std::int64_t rows =
        group.is_table() ? group.columns : part.rows * std::max(group.num_experts, std::int64_t{1});
    for (std::int64_t row = 0; row < rows; ++row) {
      sums.assign(static_cast<std::size_t>(width_of(group, part)), 0.0);
      add_row(adapter, group, part, row, 0, sums);
      for (const double sum : sums) squares += sum * sum;
    }
  }
  return group.scale() * std::sqrt(squares);
}

}  // namespace anabatic::model
