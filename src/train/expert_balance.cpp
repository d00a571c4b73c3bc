// SPDX-License-Identifier: Apache-2.0
#include "train/expert_balance.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/text.h"

namespace anabatic::train {
namespace {

constexpr const char* kLoadPrefix = "expert_load.";
constexpr std::size_t kMostNamedExperts = 8;  // experts in one warning

double share_of(std::int64_t count, std::int64_t sum, std::size_t num_experts) {
  return sum > 0 ? static_cast<double>(count) * static_cast<double>(num_experts) /
                       static_cast<double>(sum)
                 : 0.0;
}

std::int64_t sum_of(std::span<const std::int64_t> counts) {
  std::int64_t sum = 0;
  for (const std::int64_t count : counts) sum += count;
  return sum;
}

}  // namespace

ExpertCounts::ExpertCounts(std::vector<std::int64_t> layers, std::size_t num_experts)
    : layers_(std::move(layers)), values_(layers_.size() * num_experts) {
  for (const std::int64_t layer : layers_)
    outputs_.push_back(fmt::format("{}{}", kLoadPrefix, layer));
}

ExpertCounts::ExpertCounts(const BoundProgram& program) {
  std::vector<std::int64_t> layers;
  std::size_t num_experts = 0;
  for (const ir::ValueId id : program.compiled.graph.outputs) {
    const ir::Value& value = program.compiled.graph.value(id);
    const std::string name(text(value.name));
    if (!name.starts_with(kLoadPrefix)) continue;
    layers.push_back(std::stoll(name.substr(std::string_view(kLoadPrefix).size())));
    num_experts = static_cast<std::size_t>(value.type.num_elements());
  }
  *this = ExpertCounts(std::move(layers), num_experts);
}

void ExpertCounts::clear() { std::fill(values_.begin(), values_.end(), 0); }

void ExpertCounts::add(const BoundProgram& program) {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const auto* counts = program.executor->output(outputs_[i]).as<const float>();
    std::int64_t* sums = values_.data() + i * num_experts();
    for (std::size_t e = 0; e < num_experts(); ++e) sums[e] += static_cast<std::int64_t>(counts[e]);
  }
}

std::vector<LayerBalance> ExpertCounts::balance() const {
  std::vector<LayerBalance> result;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto counts = of_layer(i);
    const std::int64_t sum = sum_of(counts);
    const auto share = [&](std::int64_t count) { return share_of(count, sum, counts.size()); };
    const auto [smallest, largest] = std::minmax_element(counts.begin(), counts.end());
    result.push_back(
        {.layer = layers_[i],
         .max_over_mean = share(*largest),
         .min_over_mean = share(*smallest),
         .below_tenth =
             sum == 0 ? 0 : std::count_if(counts.begin(), counts.end(), [&](std::int64_t count) {
               return share(count) < 0.1;
             })});
  }
  return result;
}

ExpertHistory::ExpertHistory(const ExpertCounts& like)
    : sums_(like), ring_(static_cast<std::size_t>(kSteps) * sums_.values().size()) {
  sums_.clear();
}

void ExpertHistory::push(const ExpertCounts& step) {
  if (sums_.empty()) return;
  const std::span<std::int64_t> sums = sums_.values();
  std::uint32_t* slot = ring_.data() + static_cast<std::size_t>(next_) * sums.size();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::int64_t now = step.values()[i];
    sums[i] += now - slot[i];
    slot[i] = static_cast<std::uint32_t>(now);
  }
  next_ = (next_ + 1) % kSteps;
  num_steps_ = std::min(num_steps_ + 1, kSteps);
  --until_look_;
}

std::string ExpertHistory::take_warning() {
  if (sums_.empty() || until_look_ > 0) return "";
  until_look_ = kSteps;
  std::string names;
  std::size_t num_starved = 0;
  for (std::size_t i = 0; i < sums_.num_layers(); ++i) {
    const auto counts = sums_.of_layer(i);
    const std::int64_t sum = sum_of(counts);
    for (std::size_t e = 0; e < counts.size(); ++e) {
      const double share = share_of(counts[e], sum, counts.size());
      if (sum == 0 || share >= kStarvedShare) continue;
      if (!named_.insert({sums_.layer(i), static_cast<std::int64_t>(e)}).second) continue;
      if (++num_starved <= kMostNamedExperts)
        names += fmt::format("{}expert {} of layer {} ({:.1f} %)", num_starved > 1 ? ", " : "", e,
                             sums_.layer(i), 100 * share);
    }
  }
  if (num_starved == 0) return "";
  if (num_starved > kMostNamedExperts)
    names += fmt::format(" and {} more", num_starved - kMostNamedExperts);
  return fmt::format(
      "[train] in the last {} steps under {:.0f} % of an even share of the tokens went to {}; an "
      "expert without tokens learns nothing (train.balance_loss, train.balance_coef)",
      kSteps, 100 * kStarvedShare, names);
}

std::int64_t ExpertHistory::num_bytes(const ir::Graph& graph) {
  std::int64_t num_experts = 0;
  for (const ir::ValueId id : graph.outputs)
    if (text(graph.value(id).name).starts_with(kLoadPrefix))
      num_experts += graph.value(id).type.num_elements();
  // The ring, its sums, the step's own and those of a window (train/record).
  return num_experts *
         (kSteps * std::int64_t{sizeof(std::uint32_t)} + 3 * std::int64_t{sizeof(std::int64_t)});
}

std::string table_to_string(const std::vector<LayerBalance>& layers, const std::string& heading) {
  if (layers.empty()) return "";
  std::string out =
      fmt::format("{}\n  layer  max/mean  min/mean  experts below 10 % of the mean", heading);
  for (const LayerBalance& layer : layers)
    out += fmt::format("\n  {:>5}  {:>8.2f}  {:>8.2f}  {:>8}", layer.layer, layer.max_over_mean,
                       layer.min_over_mean, layer.below_tenth);
  return out;
}

std::string over_last_steps(std::int64_t num_steps) {
  return fmt::format("expert load over the last {}, by layer",
                     num_steps == 1 ? "step" : fmt::format("{} steps", num_steps));
}

}  // namespace anabatic::train
