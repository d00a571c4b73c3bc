// SPDX-License-Identifier: Apache-2.0
#include "train/utilization.h"

#include <algorithm>

#include "base/log.h"

namespace anabatic::train {
namespace {

constexpr int kMeasurements =
    16;  // in a run, in addition to the one at its beginning: half a second in all

}  // namespace

Utilization::Utilization(double peak, std::function<double()> measure)
    : peak_(peak), measure_(std::move(measure)), measurements_left_(kMeasurements) {}

std::optional<double> Utilization::of(double flops_per_second) {
  if (!(peak_ > 0)) return std::nullopt;
  while (flops_per_second > peak_ && measurements_left_ > 0) {
    --measurements_left_;
    const double again = measure_();
    if (again > peak_) {
      peak_ = again;
    } else {
      break;  // as before: this step has no share, a later one may
    }
  }
  if (!(flops_per_second > peak_)) return flops_per_second / peak_;
  if (measurements_left_ == 0) {
    measurements_left_ = -1;
    log_warning(
        "[train] steps reach {:.0f} GFLOP/s, but the measured peak of this machine is {:.0f}: MFU "
        "is not known",
        flops_per_second * 1e-9, peak_ * 1e-9);
  }
  return std::nullopt;
}

}  // namespace anabatic::train
