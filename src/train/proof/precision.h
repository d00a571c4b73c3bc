// SPDX-License-Identifier: Apache-2.0
// How far the gradients of one micro-batch are from those of fp32, in each precision, from the same
// parameters. Next to it stands how far two micro-batches are from each other in fp32: the noise
// that a step has anyway.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "train/run_config.h"

namespace anabatic::train {

// Gradients of states whose names differ in the layer alone, such as all of experts.down.
struct GradientGroup {
  std::string name;
  std::int64_t num_elements = 0;
  // |g - g32| / |g32| in the Frobenius norm, one for each precision of the report.
  std::vector<double> errors;
  double between_batches = 0;  // |g32 of another micro-batch - g32| / |g32|
};

struct PrecisionReport {
  std::int64_t tokens = 0;              // of a micro-batch
  std::vector<std::string> precisions;  // as train.precision has them
  std::vector<double> losses;           // of the first micro-batch, by precision
  double fp32_loss = 0;
  std::vector<GradientGroup>
      groups;  // in the order of the model; of those with a gradient that is not 0
};

// Takes the run's model and its first two micro-batches. Units of precision.keep keep theirs, but
// in fp32. An adapter is compared in bf16 alone. Unsupported for pairs.
PrecisionReport check_precision(const RunConfig& run);

}  // namespace anabatic::train
