// SPDX-License-Identifier: Apache-2.0
#include "report/series.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/json.h"

namespace anabatic::report {

void Series::merge(Bucket& into, const Bucket& bucket) {
  if (bucket.count > 0) {
    into.min = into.count > 0 ? std::min(into.min, bucket.min) : bucket.min;
    into.max = into.count > 0 ? std::max(into.max, bucket.max) : bucket.max;
  }
  into.sum += bucket.sum;
  into.count += bucket.count;
  into.gaps += bucket.gaps;
}

void Series::widen() {
  for (std::size_t i = 0; i < buckets_.size(); i += 2) {
    Bucket pair = buckets_[i];
    if (i + 1 < buckets_.size()) merge(pair, buckets_[i + 1]);
    buckets_[i / 2] = pair;
  }
  buckets_.resize((buckets_.size() + 1) / 2);
  width_ *= 2;
}

void Series::add(std::int64_t step, std::optional<double> value) {
  if (buckets_.empty()) first_ = step;
  if (step < first_) return;  // not of an ascending file
  const auto index = [&] { return static_cast<std::size_t>((step - first_) / width_); };
  while (index() >= most_buckets_) widen();
  if (index() >= buckets_.size()) buckets_.resize(index() + 1);
  if (value && std::isfinite(*value))
    merge(buckets_[index()], {.sum = *value, .min = *value, .max = *value, .count = 1});
  else
    ++buckets_[index()].gaps;
}

OrderedJson rounded(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return nullptr;
  if (std::abs(*value) < 1e15 && *value == std::round(*value))
    return static_cast<std::int64_t>(*value);
  return std::strtod(fmt::format("{:.6g}", *value).c_str(), nullptr);
}

OrderedJson Series::to_json() const {
  OrderedJson mean = OrderedJson::array(), min = mean, max = mean, gaps = mean;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    const auto shown = [&](double value) {
      return rounded(bucket.count > 0 ? std::optional(value) : std::nullopt);
    };
    mean.push_back(
        shown(bucket.sum / static_cast<double>(std::max<std::int64_t>(bucket.count, 1))));
    min.push_back(shown(bucket.min));
    max.push_back(shown(bucket.max));
    if (bucket.gaps > 0) gaps.push_back(i);
  }
  OrderedJson json{{"first", first_}, {"width", width_}, {"mean", std::move(mean)}};
  if (width_ > 1) {
    json["min"] = std::move(min);
    json["max"] = std::move(max);
  }
  json["gaps"] = std::move(gaps);
  return json;
}

}  // namespace anabatic::report
