// SPDX-License-Identifier: Apache-2.0
// Links of a cluster in place of the machine's own.
#pragma once
#include <memory>

#include "comm/transport.h"
#include "spec/cluster.h"

namespace anabatic::comm {

// Lets bytes of a message arrive no sooner than latency + bytes / bandwidth after they were sent.
// A link sends its messages one after the other, each way by itself. Ranks share the clock of one
// machine. InvalidArgument when the cluster has fewer devices than there are ranks.
std::unique_ptr<Transport> make_paced(std::unique_ptr<Transport> inner,
                                      const spec::ClusterSpec& cluster);

}  // namespace anabatic::comm
