// SPDX-License-Identifier: Apache-2.0
// A number over the steps of a run in a bounded number of buckets: of each its mean, its smallest
// and its largest value, so that a spike of one step shows however long the run.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

namespace anabatic::report {

class Series {
 public:
  explicit Series(std::size_t most_buckets = 600) : most_buckets_(most_buckets) {}

  // Steps ascend. None, and what is not finite, is a gap and counts as such.
  void add(std::int64_t step, std::optional<double> value);

  bool empty() const { return buckets_.empty(); }
  std::int64_t width() const { return width_; }  // steps of a bucket: a power of two

  // {"first", "width", "mean": [..], "min": [..], "max": [..], "gaps": [..]}: null where a bucket
  // has no number; min and max where a bucket holds several steps; gaps: buckets with a step whose
  // value was none.
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

// Six significant digits, or null for none: what a picture can show.
nlohmann::ordered_json rounded(std::optional<double> value);

}  // namespace anabatic::report
