// SPDX-License-Identifier: Apache-2.0
// Reads windows.jsonl for a page: load of every expert over time, seconds by segment, resident
// bytes over a step.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "base/json.h"

namespace anabatic::report {

class Windows {
 public:
  // Most cells of a run's heat maps: about half a megabyte of text.
  static constexpr std::size_t kMostCells = 120'000;

  // Returns how many lines could not be read. No file: 0.
  std::int64_t read(const std::filesystem::path& file);

  // {"columns": [[first step, last step], ..], "layers": {"0": [[percent of an even share, one for
  // each expert], one for each column]}}. Neighbouring windows are merged if there are too many
  // cells. null without experts.
  OrderedJson experts_json(std::size_t most_cells = kMostCells) const;
  // {"steps": [..], "seconds": {"attention": [..], ..}, "outside": [..]}; null if no step was
  // watched.
  OrderedJson times_json() const;
  // The last measurement of memory: {"step", "num_positions", "positions": [..], "bytes": [..]} or
  // null.
  const OrderedJson& memory_json() const { return memory_; }

 private:
  struct Window {
    std::int64_t first = 0, last = 0;
    std::vector<std::vector<std::int64_t>> counts;  // as layers_: one for each expert
  };
  struct Time {
    std::int64_t step = 0;
    double outside = 0;
    std::map<std::string, double> segments;
  };
  void add_experts(std::int64_t step, const Json& line);
  void add_time(const Json& time);
  OrderedJson layer_json(std::size_t layer, std::size_t num_columns) const;

  std::vector<std::string> layers_;
  std::size_t num_experts_ = 0;
  std::vector<Window> windows_;
  std::vector<Time> times_;
  OrderedJson memory_;
};

}  // namespace anabatic::report
