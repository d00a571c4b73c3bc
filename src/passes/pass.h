// SPDX-License-Identifier: Apache-2.0
// A pass: a named function from graph to graph. The facts that it needs and establishes are data. A
// pass `fuse_x` is in fuse_x.{h,cpp}, its tests in tests/passes/fuse_x/.
#pragma once
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "passes/pass_context.h"

namespace anabatic::passes {

struct Pass {
  std::string_view name;  // key of its dump, its test folder and --disable-pass
  // Facts are plain words such as "differentiated"; the runner keeps the set of those established.
  // `needs` must be in it before; afterwards `breaks` are removed and `establishes` added. A
  // skipped pass changes nothing in the set, so passes that depend on it fail by name.
  std::vector<std::string_view> needs{}, establishes{}, breaks{};
  bool required = false;  // true: may not be disabled
  // True: it does what spec::Decisions ask for, and does not run without them.
  bool of_decisions = false;
  // True iff the graph changed; the runner compares hashes to check.
  bool (*run)(ir::Graph&, const PassContext&) = nullptr;
};

}  // namespace anabatic::passes
