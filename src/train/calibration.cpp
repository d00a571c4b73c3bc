// SPDX-License-Identifier: Apache-2.0
#include "train/calibration.h"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <tuple>

#include "base/environment.h"
#include "base/error.h"
#include "base/json_node.h"
#include "base/text.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

constexpr int kCalibrationFormat = 7;
constexpr std::int64_t kMostCalibrationBytes = std::int64_t{1} << 20;
// Beyond: not a measurement.
constexpr double kLeastShare = 1e-4, kMostShare = 100, kMostFixedSeconds = 10,
                 kMostWeightBytes = 1e12;

Calibration defaults(const std::string& reason) {
  return {.efficiency = plan::default_efficiency(), .source = "default shares: " + reason};
}

}  // namespace

std::string machine_fingerprint(const spec::DeviceSpec& device) {
  return fmt::format("{} | {} threads | {} | format {}", device.model, device.num_threads,
                     fmt::join(device.instruction_sets, "+"), kCalibrationFormat);
}

fs::path calibration_file(const spec::DeviceSpec& device) {
  const std::string cache = environment::cache_directory();
  if (cache.empty()) return {};
  const std::string fingerprint = machine_fingerprint(device);
  return fs::path(cache) / "anabatic" /
         fmt::format("calibration-{:016x}.json",
                     XXH3_64bits(fingerprint.data(), fingerprint.size()));
}

OrderedJson to_json(const plan::OpEfficiency& efficiency) {
  return {{"shares", efficiency.share_of_roof},
          {"fixed_seconds", efficiency.fixed_seconds},
          {"fixed_weight_bytes", efficiency.fixed_weight_bytes}};
}

plan::OpEfficiency read_efficiency(const JsonNode& from) {
  plan::OpEfficiency result = plan::default_efficiency();
  for (const auto& [name, least, most, list] :
       {std::tuple{"shares", kLeastShare, kMostShare, &result.share_of_roof},
        std::tuple{"fixed_seconds", 0.0, kMostFixedSeconds, &result.fixed_seconds},
        std::tuple{"fixed_weight_bytes", 0.0, kMostWeightBytes, &result.fixed_weight_bytes}})
    for (const auto& [key, number] : from.at(name).members())
      (*list)[key] = number.as_number(least, most);
  return result;
}

Calibration read_calibration(const fs::path& file, const spec::DeviceSpec& device) {
  std::error_code error;
  if (file.empty() || !fs::exists(file, error))
    return defaults("this machine is not calibrated (anabatic plan --calibrate)");
  Json json;
  try {
    json = try_parse_json(read_file(file, kMostCalibrationBytes));
  } catch (const Error&) {
    return defaults(fmt::format("cannot read {}", file.string()));
  }
  if (!json.is_object() || !json.contains("machine") || !json["machine"].is_string())
    return defaults(fmt::format("{} is no calibration", file.string()));
  if (json["machine"].get<std::string>() != machine_fingerprint(device))
    return defaults(fmt::format("{} is of another machine or format", file.string()));
  Calibration result{.fp32_flops_per_second = positive_number(json, "fp32_flops_per_second"),
                     .bf16_flops_per_second = positive_number(json, "bf16_flops_per_second"),
                     .int8_ops_per_second = positive_number(json, "int8_ops_per_second"),
                     .copy_bytes_per_second = positive_number(json, "copy_bytes_per_second"),
                     .source = "calibrated on this machine"};
  try {
    result.efficiency = read_efficiency(JsonNode(json, ""));
  } catch (const Error& wrong) {
    return defaults(fmt::format("{} is no calibration: {}", file.string(), wrong.what()));
  }
  if (result.efficiency.share_of_roof.empty() || result.fp32_flops_per_second == 0 ||
      result.bf16_flops_per_second == 0 || result.int8_ops_per_second == 0 ||
      result.copy_bytes_per_second == 0)
    return defaults(fmt::format("{} is no calibration", file.string()));
  return result;
}

Calibration stored_calibration(const spec::DeviceSpec& device) {
  try {
    return read_calibration(calibration_file(device), device);
  } catch (const std::exception& error) {
    return defaults(error.what());
  }
}

void write_calibration(const fs::path& file, const Calibration& calibration,
                       const spec::DeviceSpec& device) {
  OrderedJson json{{"machine", machine_fingerprint(device)},
                   {"fp32_flops_per_second", calibration.fp32_flops_per_second},
                   {"bf16_flops_per_second", calibration.bf16_flops_per_second},
                   {"int8_ops_per_second", calibration.int8_ops_per_second},
                   {"copy_bytes_per_second", calibration.copy_bytes_per_second}};
  json.update(to_json(calibration.efficiency));
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  if (error)
    throw ResourceError(fmt::format("[calibration] cannot make the directory {}: {}",
                                    file.parent_path().string(), error.message()));
  write_file_atomically(file, dump_json(json, 2) + "\n");
}

void store_calibration(const Calibration& calibration, const spec::DeviceSpec& device) {
  const fs::path file = calibration_file(device);
  if (file.empty())
    throw ResourceError("[calibration] expected XDG_CACHE_HOME or HOME to be set, got neither");
  write_calibration(file, calibration, device);
}

Calibration part_of(Calibration calibration, std::int64_t num_ranks) {
  if (num_ranks == 1) return calibration;
  const auto n = static_cast<double>(num_ranks);
  for (double* peak : {&calibration.fp32_flops_per_second, &calibration.bf16_flops_per_second,
                       &calibration.int8_ops_per_second, &calibration.copy_bytes_per_second})
    *peak /= n;
  for (auto& [key, seconds] : calibration.efficiency.fixed_seconds) seconds *= n;
  calibration.source += fmt::format(", which {} ranks share", num_ranks);
  return calibration;
}

spec::DeviceSpec with_peaks_of(spec::DeviceSpec device, const Calibration& calibration) {
  if (calibration.fp32_flops_per_second > 0)
    device.fp32_flops_per_second = calibration.fp32_flops_per_second;
  if (calibration.bf16_flops_per_second > 0)
    device.bf16_flops_per_second = calibration.bf16_flops_per_second;
  if (calibration.int8_ops_per_second > 0)
    device.int8_ops_per_second = calibration.int8_ops_per_second;
  if (calibration.copy_bytes_per_second > 0)
    device.copy_bytes_per_second = calibration.copy_bytes_per_second;
  return plan::with_peaks(std::move(device));
}

}  // namespace anabatic::train
