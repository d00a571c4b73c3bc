// SPDX-License-Identifier: Apache-2.0
#include "cli/calibrate_once.h"

#include <fmt/core.h>

#include <chrono>

#include "anabatic/error.h"
#include "bench/calibrate.h"
#include "device/topology.h"
#include "train/swap_tier.h"

namespace anabatic::cli {
namespace {

constexpr double kMostSeconds = 20;

}  // namespace

void calibrate_once(const train::RunConfig& run) {
  if (!run.device.calibrate || run.memory.budget <= 0 || !run.memory.plan.empty() ||
      run.compiler.trivial_planners)  // which choose nothing by prices
    return;
  train::measure_disk_once(run);
  const spec::DeviceSpec device = device::describe_cpu(static_cast<int>(run.device.threads));
  const std::filesystem::path file = train::calibration_file(device);
  if (file.empty() || !train::stored_calibration(device).efficiency.share_of_roof.empty()) return;
  const auto begin = std::chrono::steady_clock::now();
  try {
    const auto measured = bench::calibrate_within(run.device.threads, kMostSeconds);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (!measured) {
      fmt::print(stderr,
                 "default prices: this machine is busy, or takes more than {} s to calibrate "
                 "(anabatic plan --calibrate)\n",
                 kMostSeconds);
      return;
    }
    train::store_calibration(*measured, device);
    fmt::print(stderr, "calibrated this machine in {:.1f} s, once: {}\n", seconds.count(),
               file.string());
  } catch (const Error& error) {
    fmt::print(stderr, "default prices: cannot calibrate this machine: {}\n", error.what());
  }
}

}  // namespace anabatic::cli
