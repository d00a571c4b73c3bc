// SPDX-License-Identifier: Apache-2.0
#include "train/caches.h"

#include <set>

namespace anabatic::train {

void drop_caches(ModelSession& session,
                 std::initializer_list<std::unique_ptr<BoundProgram>*> programs) {
  std::set<Name> caches;
  for (std::unique_ptr<BoundProgram>* program : programs) {
    if (*program == nullptr) continue;
    for (const ir::State& state : (*program)->compiled.graph.states)
      if (state.role == ir::StateRole::kCache) caches.insert(state.name);
    program->reset();
  }
  for (const Name cache : caches) session.store().remove(cache);
}

}  // namespace anabatic::train
