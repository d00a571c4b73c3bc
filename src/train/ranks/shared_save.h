// SPDX-License-Identifier: Apache-2.0
// A save of all ranks: each writes its boxes of the training state, while the first one writes the
// weights, for which it reads what others hold. Between steps. An error of any rank ends it on all
// of them: CommError with its text.
#pragma once
#include <filesystem>

#include "io/checksums.h"
#include "train/checkpoint/boxes.h"
#include "train/model_session.h"
#include "train/ranks/step_sums.h"

namespace anabatic::train {

// On the first rank, which has told the others to join. `directory` is there. Returns the checksums
// of the files of all ranks, which are durable then.
io::ChecksumManifest lead_save(StepSums& sums, ModelSession& session,
                               const std::filesystem::path& directory, const BoxMap& boxes);

// On the other ranks.
void join_save(StepSums& sums, ModelSession& session);

}  // namespace anabatic::train
