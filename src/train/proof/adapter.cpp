// SPDX-License-Identifier: Apache-2.0
#include "train/proof/adapter.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "model/lora/merged_weights.h"
#include "model/lora/peft_files.h"
#include "train/convert/logits.h"
#include "train/convert/stored_model.h"

namespace anabatic::train {
namespace {

double squares_of(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return sum;
}

double norm_of_difference(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - double{b[i]}, 2);
  return std::sqrt(sum);
}

// The roundoff of the coarsest dtype that weights of the model have; 0 where that is f32 or finer.
double roundoff_of_files(const std::string& model) {
  const StoredModel stored(model);
  double roundoff = 0;
  for (const model::FileTensor& tensor : stored.map().tensors) {
    if (tensor.dtype == DType::kBFloat16) roundoff = 0x1.0p-8;
    if (tensor.dtype == DType::kFloat16) roundoff = std::max(roundoff, 0x1.0p-11);
  }
  return roundoff;
}

double bound_of(const model::ModelSpec& spec, double roundoff_of_weights) {
  constexpr double kTensorsPerLayer = 8, kConfidence = 4, kRoundoff = 0x1.0p-24;
  const auto layers = static_cast<double>(spec.layers.size());
  return kConfidence * std::sqrt(kTensorsPerLayer * (layers + 1)) *
         (std::sqrt(static_cast<double>(spec.hidden_size)) * kRoundoff + roundoff_of_weights);
}

void add_norms(const model::AdapterValues& values, AdapterReport& report) {
  std::array<std::optional<double>, model::kNumAdapterKinds> squares;
  std::int64_t num_zero = 0, num_adapters = 0;
  std::string first_zero;
  for (const model::AdapterGroup& group : values.adapter().groups)
    for (const model::AdapterPart& part : group.parts) {
      const std::string state = group.is_table() ? group.a() : part.b();
      const double of_part = squares_of(values.of(state));
      auto& sum = squares[static_cast<std::size_t>(group.kind)];
      sum = sum.value_or(0) + of_part;
      ++num_adapters;
      if (of_part != 0) continue;
      if (num_zero++ == 0) first_zero = state;
    }
  for (std::size_t i = 0; i < squares.size(); ++i)
    if (squares[i])
      report.norms.emplace_back(model::to_string(static_cast<model::AdapterKind>(i)),
                                std::sqrt(*squares[i]));
  if (num_zero > 0)
    report.problems.push_back(
        fmt::format("{} of {} adapters of weights change nothing, such as {}, which is all zero",
                    num_zero, num_adapters, first_zero));
}

}  // namespace

AdapterReport check_adapter(const std::string& adapter, const std::string& base,
                            const std::string& merged) {
  const model::ModelConfig config = model::load_config(base);
  const model::PeftFiles files(config, adapter);
  model::AdapterValues values(files.adapter());
  files.load(values.writer());
  AdapterReport report{.coverage = model::coverage_to_string(config, values.adapter())};
  for (const std::string& module : files.left_out())
    report.problems.push_back(
        fmt::format("target_modules names {}, and the file has no tensors of it", module));
  add_norms(values, report);

  const std::vector<std::int32_t> tokens = probe_tokens(config);
  report.tokens = static_cast<std::int64_t>(tokens.size());
  const std::vector<float> without = logits_of(base, tokens),
                           with = logits_of(base, tokens, adapter);
  report.logits = std::sqrt(squares_of(with));
  report.effect = norm_of_difference(with, without);
  const double rounding = bound_of(config.spec, 0) * report.logits;
  if (!(report.effect > rounding))
    report.problems.push_back("the adapter changes no logit beyond rounding, or one is not finite");
  if (merged.empty()) report.not_merged = model::why_not_merged(config, values.adapter());
  if (!report.not_merged.empty()) return report;
  const std::vector<float> of_merged =
      merged.empty() ? logits_of(base, tokens, "", &values) : logits_of(merged, tokens);
  report.merge_bound =
      merged.empty() ? rounding : bound_of(config.spec, roundoff_of_files(merged)) * report.logits;
  report.merge_difference = of_merged.size() == with.size()
                                ? norm_of_difference(of_merged, with)
                                : std::numeric_limits<double>::infinity();
  if (!(report.merge_difference <= report.merge_bound))
    report.problems.push_back(fmt::format("{} is not the model with the adapter next to it",
                                          merged.empty() ? "the merge" : merged));
  if (report.effect > rounding && report.effect <= report.merge_bound)
    report.problems.push_back(fmt::format(
        "the adapter changes logits by less than the dtype of {} may: that cannot be told from the "
        "model without it",
        merged));
  return report;
}

}  // namespace anabatic::train
