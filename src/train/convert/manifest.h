// SPDX-License-Identifier: Apache-2.0
// What a conversion read and wrote: every tensor with its hash, where each part of it went, and how
// far logits moved. Stored as anabatic.manifest.json in the directory that was written, so that it
// can be checked later.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/weight_source.h"
#include "train/convert/logits.h"

namespace anabatic::train {

inline constexpr const char* kManifestFile = "anabatic.manifest.json";

// Elements of a tensor that are a part of one parameter.
struct ManifestPart {
  std::string parameter;
  std::int64_t offset = 0, count = 0;  // the least element of the parameter, and how many
  std::string op;                      // "copy", "reorder rows" or "transpose"
  bool operator==(const ManifestPart&) const = default;
};

struct ManifestTensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t checksum = 0;  // XXH3 of its bytes
  std::vector<ManifestPart> parts;

  std::int64_t num_elements() const;
  bool operator==(const ManifestTensor&) const = default;
};

std::int64_t num_elements(const std::vector<ManifestTensor>& tensors);

struct Manifest {
  std::string source;                         // the directory, as it was given
  std::vector<ManifestTensor> read, written;  // by the forward pass
  std::vector<ManifestTensor> repeated;       // of the source: equal to a tensor above
  std::vector<ManifestTensor> ignored;        // of the source: the model does not use them
  std::optional<LogitsComparison> logits{};   // of source and result
};

// Tensors of a directory, hashed. Those that no parameter reads are added to `others`.
std::vector<ManifestTensor> describe(const model::WeightSource& source,
                                     std::vector<ManifestTensor>& others);

void write_manifest(const std::filesystem::path& directory, const Manifest& manifest);
// InvalidArgument where there is none, or where it does not say what it has to.
Manifest read_manifest(const std::filesystem::path& directory);

// Differences of tensors from what a manifest says of them, a line each with the tensor's name.
std::vector<std::string> differences(const std::vector<ManifestTensor>& expected,
                                     const std::vector<ManifestTensor>& found);

// Differences between the values of two directories of one model, a line for each tensor of
// `result`: every element has to be that of `source`, rounded to the tensor's dtype.
std::vector<std::string> differing_values(const model::WeightSource& source,
                                          const model::WeightSource& result);

}  // namespace anabatic::train
