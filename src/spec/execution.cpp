// SPDX-License-Identifier: Apache-2.0
#include "spec/execution.h"

#include "base/error.h"

namespace anabatic::spec {

std::string_view to_string(Action action) {
  switch (action) {
    case Action::kForward:
      return "forward";
    case Action::kBackward:
      return "backward";
    case Action::kUpdate:
      return "update";
    case Action::kSumLeaf:
      return "sum_leaf";
  }
  ANABATIC_CHECK(false, "[action] unknown code {}", static_cast<int>(action));
}

}  // namespace anabatic::spec
