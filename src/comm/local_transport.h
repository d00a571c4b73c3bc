// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process: the receiver reads the sender's memory.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/transport.h"

namespace anabatic::comm {

// One transport a rank. They share a world, which ends with the last of them.
std::vector<std::unique_ptr<Transport>> local_transports(std::int32_t num_ranks);

}  // namespace anabatic::comm
