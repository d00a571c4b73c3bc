// SPDX-License-Identifier: Apache-2.0
// The KV caches of decoding programs, which are states of a session while such programs live.
#pragma once
#include <initializer_list>
#include <memory>

#include "train/model_session.h"

namespace anabatic::train {

// Ends the programs, then removes their caches from the session.
void drop_caches(ModelSession& session,
                 std::initializer_list<std::unique_ptr<BoundProgram>*> programs);

}  // namespace anabatic::train
