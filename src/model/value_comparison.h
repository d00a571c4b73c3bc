// SPDX-License-Identifier: Apache-2.0
// What files hold of a model's values, compared with these.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace anabatic::model {

struct ValueComparison {
  std::vector<std::string>
      differences{};  // from the values, rounded as files hold them: a line each
  std::map<std::string, double> largest_errors{};  // of quantised tensors, by name
};

}  // namespace anabatic::model
