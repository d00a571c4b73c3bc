// SPDX-License-Identifier: Apache-2.0
// A number over the steps of a run in a bounded number of buckets. Each has a mean, a smallest and
// a largest value, so that a spike of one step is visible in a run of any length.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

namespace anabatic::report {

class Series {
 public:
  explicit Series(std::size_t most_buckets = 600) : most_buckets_(most_buckets) {}

  // Steps ascend. Nothing, or a number that is not finite, is a gap and counts as one.
  void add(std::int64_t step, std::optional<double> value);

  bool empty() const { return buckets_.empty(); }
  std::int64_t width() const { return width_; }  // steps of a bucket: a power of two

  // {"first", "width", "mean": [..], "min": [..], "max": [..], "gaps": [..]}. null for a bucket
  // without a number. min and max only for buckets of several steps. gaps: buckets with a gap.
  nlohmann::ordered_json to_json() const;

 private:
  struct Bucket {
    double sum = 0, min = 0, max = 0;
    std::int64_t count = 0, gaps = 0;
  };
  void widen();
  static void merge(Bucket& into, const Bucket& bucket);

  std::size_t most_buckets_;
  std::int64_t first_ = 0, width_ = 1;
  std::vector<Bucket> buckets_;
};

// Six significant digits, or null for none: enough for a chart.
nlohmann::ordered_json rounded(std::optional<double> value);

}  // namespace anabatic::report
