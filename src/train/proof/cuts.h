// SPDX-License-Identifier: Apache-2.0
// Whether loss and gradients of a step depend on how its rows are cut into micro-batches. Each row
// is run alone, and gradients are added up in double. Samples of several rows, in one micro-batch
// or in many, have to give the same but for rounding. Auxiliary losses are left out, for those of a
// micro-batch are not those of its parts.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "io/data/loader.h"
#include "train/model_session.h"

namespace anabatic::train {

// The micro-batches of one step.
struct Cut {
  std::string name;
  std::vector<io::MicroBatch> micro_batches;
};

// A micro-batch of eight samples of `length` rows as 1 x 8, 2 x 4 and 8 x 1.
std::vector<Cut> cuts_of(const io::MicroBatch& batch, std::int64_t length);

// Each document of a micro-batch in one of its own, filled up with padding to a power of two.
std::vector<io::MicroBatch> documents_alone(const io::MicroBatch& batch);

// The same with labels of other weights: times 1/2, 1, 3/2 or 2, by place.
io::MicroBatch with_uneven_weights(const io::MicroBatch& batch);

struct CutResult {
  std::string name;
  double loss = 0;
  // The state whose gradient comes closest to the bound, or is furthest beyond it.
  std::string worst;
  double difference = 0;  // of its gradient, in norm, as a share of what `bound` is a share of
  double bound = 0;       // of the loss's difference too, as a share of it
  bool holds = false;
};

struct CutsReport {
  std::int64_t rows = 0, labels = 0, states = 0;
  double loss = 0;  // of rows one by one
  std::vector<CutResult> cuts;
  bool holds() const;
};

// Runs the session's model. `rows` are those that each cut holds.
//
// The same row has the same values in every cut, up to sums over tokens. These go by blocks of at
// most 512, and one addition a block (docs/internals/numerics.md): r = 2 · 512 + tokens / 256 + 2
// roundings of both sides. They are independent, so a gradient is off by 4 √r u of its terms
// (Higham and Mary, 2019). Those are as large as the norms of all rows' gradients together. A state
// whose gradient is 0 but for rounding, such as the bias of keys, has 2^-10 of the largest such sum
// as well.
CutsReport compare_cuts(ModelSession& session, const std::vector<io::MicroBatch>& rows,
                        const std::vector<Cut>& cuts);

// Takes the first eight samples of the run, with uneven weights. Unsupported for pairs. Where
// data.packing lets documents share attention, a sample is a row.
CutsReport check_cuts(const RunConfig& run);

}  // namespace anabatic::train
