// SPDX-License-Identifier: Apache-2.0
// A rank that is not the first: it takes over what the first one has decided, fills its own states,
// takes its part of each step and of each save.
#pragma once
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "io/data/dataset.h"
#include "train/ranks/agreement.h"
#include "train/ranks/ranks.h"

namespace anabatic::train {

// This process of a launcher follows the first one to the end of the run. Between steps the first
// rank hears of `stop_requested`. Throws what ended this rank, which the others hear of, or
// CommError with the text of another one.
void follow(const RunConfig& run, comm::MpiWorld& world,
            const std::function<bool()>& stop_requested);

// The ranks that are threads of this process, but for the first.
class Followers {
 public:
  // They read `dataset`, and `validation` where there is one.
  Followers(Ranks& ranks, const RunConfig& run, const io::Dataset& dataset,
            const io::Dataset* validation);
  // Ends them, in the middle of a step if need be.
  ~Followers();
  Followers(const Followers&) = delete;
  Followers& operator=(const Followers&) = delete;

 private:
  Ranks& ranks_;
  std::vector<std::thread> threads_;
};

}  // namespace anabatic::train
