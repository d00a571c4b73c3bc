// SPDX-License-Identifier: Apache-2.0
// Which share of the roof each op reached on this machine, kept in a file of the user's cache so
// that it is measured once (bench/calibrate).
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/json.h"
#include "base/json_node.h"
#include "plan/prices.h"
#include "spec/device_spec.h"

namespace anabatic::train {

struct Calibration {
  plan::OpEfficiency efficiency{};
  // Peaks at the time when the shares were measured; 0: not measured.
  double fp32_flops_per_second = 0, bf16_flops_per_second = 0, int8_ops_per_second = 0,
         copy_bytes_per_second = 0;
  std::string source;  // "calibrated on this machine", "default shares: ..." with the reason
};

// CPU model, threads, instruction sets and the version of the format.
std::string machine_fingerprint(const spec::DeviceSpec& device);

// $XDG_CACHE_HOME/anabatic/calibration-HASH.json, under ~/.cache without the variable; empty when
// neither is known.
std::filesystem::path calibration_file(const spec::DeviceSpec& device);

// The measured shares and times: members of an object. InvalidArgument naming the member.
OrderedJson to_json(const plan::OpEfficiency& efficiency);
plan::OpEfficiency read_efficiency(const JsonNode& from);

// Never throws: without a file, or with one that is corrupt or of another machine, returns the
// default shares with the reason in `source`.
Calibration stored_calibration(const spec::DeviceSpec& device);
Calibration read_calibration(const std::filesystem::path& file, const spec::DeviceSpec& device);

// ResourceError when it cannot be written.
void store_calibration(const Calibration& calibration, const spec::DeviceSpec& device);
void write_calibration(const std::filesystem::path& file, const Calibration& calibration,
                       const spec::DeviceSpec& device);

// Of `calibration`, what one of `num_ranks` ranks that run at once has: a part of the peaks, and
// longer fixed times.
Calibration part_of(Calibration calibration, std::int64_t num_ranks);

// `device` with the calibration's own peaks, if it has any: the shares are relative to those.
spec::DeviceSpec with_peaks_of(spec::DeviceSpec device, const Calibration& calibration);

}  // namespace anabatic::train
