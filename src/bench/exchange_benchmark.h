// SPDX-License-Identifier: Apache-2.0
// Speed of exchanges between ranks by each method (comm/methods.h), in turn with MPI's blocking
// collectives and a copy of memory.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/settings.h"

namespace anabatic::comm {
class MpiWorld;
}

namespace anabatic::bench {

inline constexpr std::string_view kExchangeKind = "exchange";  // its name as a kind of benchmark

struct ExchangeRow {
  std::string name;           // "reduce_scatter"
  std::int64_t bytes = 0;     // of the whole: a rank's input, or its output if that is larger
  double received_bytes = 0;  // by a rank
  double touched_bytes = 0;   // the fewest that a rank has to read and write
  double seconds = 0;         // by ordered messages, the median
  double method_seconds = 0;  // by method mpi; 0: not measured
  double mpi_seconds = 0;     // of MPI's blocking call; 0: not measured
  double ratio = 0;           // median of the rounds' own: MPI's blocking time / that of ordered
  double copy_share = 0;      // likewise: the time of a copy of touched_bytes / that of ordered
};

struct ExchangeResult {
  std::int64_t num_ranks = 0, num_rounds = 0;
  std::string ranks_are;             // "threads", or "processes of Open MPI v4.1.4, MPI 3.1"
  double copy_bytes_per_second = 0;  // of one rank while all copy: read + written
  bool is_checked = false;           // all outputs were as expected
  Settings settings;
  std::vector<ExchangeRow> rows;
};

// Reads the settings `ranks` and `mib`. With a world of more than one rank, ranks are its
// processes: all of them call this, and all get the result of rank 0's clock. Otherwise ranks are
// threads of this process. InvalidArgument for another number of ranks than the world has, or
// below 2. InternalError for an output that is not as expected.
//
// What was measured of both methods is kept for the choice of runs (train/ranks).
ExchangeResult measure_exchanges(comm::MpiWorld* world, Settings settings, std::int64_t num_rounds,
                                 bool is_checked);

}  // namespace anabatic::bench
