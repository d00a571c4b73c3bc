// SPDX-License-Identifier: Apache-2.0
#include "bench/graph_case.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "ops/table.h"

namespace anabatic::bench {
namespace {

constexpr std::int32_t kIgnored = -100;

std::vector<std::int32_t> count_up(std::int64_t count) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    values[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
  return values;
}

}  // namespace

float deviate(std::string_view name, std::int64_t i) {
  constexpr double kSpan = 3.4641016151377544;  // 2 √3
  return static_cast<float>(
      kSpan * (random_uniform(0, stream_of(name), static_cast<std::uint64_t>(i)) - 0.5));
}

CaseBuilder::CaseBuilder(std::string_view name, std::int64_t num_tokens)
    : builder_(case_.graph, ops::find_op) {
  case_.graph.name = std::string(name);
  case_.num_tokens = num_tokens;
}

void CaseBuilder::tag(std::string_view segment) {
  builder_.set_tag({.phase = ir::Phase::kForward, .layer = -1, .segment = intern(segment)});
}

ir::GraphBuilder& CaseBuilder::timed(std::string_view segment) {
  tag(segment);
  return builder_;
}

ir::ValueId CaseBuilder::batch(std::string_view name, const std::vector<std::int64_t>& shape,
                               std::vector<std::int32_t> values) {
  case_.batch[std::string(name)] = std::move(values);
  return builder_.batch_input(name, tensor_type(DType::kInt32, shape));
}

ir::ValueId CaseBuilder::parameter(std::string_view name, const std::vector<std::int64_t>& shape) {
  deviations_[std::string(name)] =
      shape.size() < 2 ? 0.0f
                       : static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.back())));
  return builder_.state(name, tensor_type(DType::kFloat32, shape), ir::StateRole::kParameter);
}

ir::ValueId CaseBuilder::rows(std::string_view name, std::int64_t width) {
  const std::int64_t count = case_.num_tokens;
  const ir::ValueId table = parameter(name, {count, width});
  deviations_[std::string(name)] = 1.0f;
  tag(kSeedSegment);
  ir::ValueId indices = ir::kNoValue;
  for (const ir::ValueId input : case_.graph.batch)
    if (text(case_.graph.value(input).name) == "tokens") indices = input;
  if (indices == ir::kNoValue) indices = batch("tokens", {count}, count_up(count));
  return builder_.add1("embedding", {table, indices});
}

GraphCase CaseBuilder::close(ir::ValueId logits, std::vector<TimedPart> parts) {
  const std::int64_t num_rows = builder_.type(logits).dim(0);
  const ir::ValueId labels = builder_.batch_input("labels", tensor_type(DType::kInt32, {num_rows}));
  const ir::ValueId scale = builder_.step_input("inverse_tokens", tensor_type(DType::kFloat32, {}));
  const ir::ValueId loss = builder_.add("cross_entropy", {logits, labels, scale})[0];
  builder_.output(loss, "loss");
  case_.graph.objective = loss;
  case_.parts = std::move(parts);
  case_.value = [deviations = deviations_](std::string_view name, std::int64_t i) {
    const float deviation = deviations.find(name)->second;
    return deviation == 0.0f ? 1.0f + 0.1f * deviate(name, i) : deviation * deviate(name, i);
  };
  return std::move(case_);
}

GraphCase CaseBuilder::finish(ir::ValueId y, std::vector<TimedPart> parts, std::int64_t top_k,
                              std::vector<std::int32_t> slot_of_row) {
  const std::int64_t num_rows = builder_.type(y).dim(0), width = builder_.type(y).dim(1);
  if (slot_of_row.empty()) slot_of_row = count_up(num_rows);
  case_.labels = [=](std::int64_t first_tokens) {
    std::vector<std::int32_t> labels(slot_of_row.size(), kIgnored);
    for (std::size_t row = 0; row < labels.size(); ++row)
      if (slot_of_row[row] < first_tokens * top_k)
        labels[row] = static_cast<std::int32_t>(slot_of_row[row] % width);
    return labels;
  };
  tag(kSeedSegment);
  // The `scale` keeps fusions of a head and its loss from taking the work in.
  return close(builder_.add1("scale", {y}, {{"factor", 1.0}}), std::move(parts));
}

GraphCase CaseBuilder::finish_with_loss(ir::ValueId logits, std::vector<TimedPart> parts,
                                        double ignored) {
  const std::int64_t num_rows = builder_.type(logits).dim(0), width = builder_.type(logits).dim(1);
  case_.labels = [=](std::int64_t first_tokens) {
    std::vector<std::int32_t> labels(static_cast<std::size_t>(num_rows), kIgnored);
    for (std::int64_t row = 0; row < std::min(num_rows, first_tokens); ++row) {
      const auto place = static_cast<std::uint64_t>(row);
      if (random_uniform(0, stream_of("ignored"), place) >= ignored)
        labels[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(
            random_below(0, stream_of("labels"), place, static_cast<std::uint64_t>(width)));
    }
    return labels;
  };
  tag("loss");
  return close(logits, std::move(parts));
}

}  // namespace anabatic::bench
