// SPDX-License-Identifier: Apache-2.0
// How evenly tokens are routed to the experts of each MoE layer: counts and reports.
#pragma once
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "anabatic/events.h"
#include "train/model_session.h"

namespace anabatic::train {

// Rows of every expert of every MoE layer, of tokens alone: padding does not count.
class ExpertCounts {
 public:
  ExpertCounts() = default;
  // For the layers that `program` counts; none for a dense model.
  explicit ExpertCounts(const BoundProgram& program);
  // For these layers, with as many experts each.
  ExpertCounts(std::vector<std::int64_t> layers, std::size_t num_experts);

  bool empty() const { return layers_.empty(); }
  void clear();
  // Adds what the program's last forward counted.
  void add(const BoundProgram& program);
  std::vector<LayerBalance> balance() const;

  std::size_t num_layers() const { return layers_.size(); }
  std::size_t num_experts() const { return empty() ? 0 : values_.size() / layers_.size(); }
  std::int64_t layer(std::size_t i) const { return layers_[i]; }
  std::span<const std::int64_t> of_layer(std::size_t i) const {
    return std::span(values_).subspan(i * num_experts(), num_experts());
  }
  std::span<std::int64_t> values() { return values_; }  // [layers, experts]
  std::span<const std::int64_t> values() const { return values_; }

 private:
  std::vector<std::int64_t> layers_;
  std::vector<std::string> outputs_;  // of the program, a layer
  std::vector<std::int64_t> values_;
};

// The last steps of a run, summed. Allocates nothing after it is made.
class ExpertHistory {
 public:
  static constexpr std::int64_t kSteps = 100;
  static constexpr double kStarvedShare = 0.02;

  ExpertHistory() = default;
  // For steps with counts of the same layers as `like`.
  explicit ExpertHistory(const ExpertCounts& like);

  void push(const ExpertCounts& step);
  std::int64_t num_steps() const { return num_steps_; }  // at most kSteps
  const ExpertCounts& sums() const { return sums_; }
  // Names experts that got under kStarvedShare of their share in the last kSteps steps, each once;
  // "" where there is no other. Looks once every kSteps steps.
  std::string take_warning();

  // What it holds for a program with these outputs.
  static std::int64_t num_bytes(const ir::Graph& graph);

 private:
  ExpertCounts sums_;
  std::vector<std::uint32_t> ring_;  // [kSteps, layers, experts]
  std::int64_t next_ = 0, num_steps_ = 0, until_look_ = kSteps;
  std::set<std::pair<std::int64_t, std::int64_t>> named_;  // layer, expert
};

// A line a layer under a heading; "" without layers.
std::string table_to_string(const std::vector<LayerBalance>& layers, const std::string& heading);
// Such a heading.
std::string over_last_steps(std::int64_t num_steps);

}  // namespace anabatic::train
