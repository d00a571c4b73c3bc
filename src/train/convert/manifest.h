// SPDX-License-Identifier: Apache-2.0
// What a conversion, an import or a checkpoint read and wrote: every tensor with its hash, where
// each part of it went, and how far logits moved. Stored as anabatic.manifest.json in the directory
// that was written, or next to a file FILE as FILE.manifest.json, so that it can be checked later.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/checksums.h"
#include "io/parallel.h"
#include "model/value_comparison.h"
#include "model/weight_source.h"
#include "train/convert/logits.h"
#include "train/convert/upcycle.h"

namespace anabatic::train {

inline constexpr const char* kManifestFile = "anabatic.manifest.json";

// Elements of a tensor that are a part of one parameter.
struct ManifestPart {
  std::string parameter;
  std::int64_t offset = 0, count = 0;  // the least element of the parameter, and how many
  // "copy", "reorder rows", "transpose", "quantise", "dequantise" or two of them; "scale" and
  // "shape" hold no element themselves.
  std::string op;
  bool operator==(const ManifestPart&) const = default;
};

struct ManifestTensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t checksum = 0;  // XXH3 of its bytes
  std::vector<ManifestPart> parts;
  std::int64_t bytes = 0;                 // 0: not known
  std::string format{};                   // of quantised elements: "q8_0", "int4_group_32"
  std::optional<double> largest_error{};  // likewise: largest |value - that of the source|

  std::int64_t num_elements() const;  // of parameters, or of its shape where it is none's part
  bool operator==(const ManifestTensor&) const = default;
};

std::int64_t num_elements(const std::vector<ManifestTensor>& tensors);

enum class ManifestKind : std::uint8_t {
  kConversion,  // lies with what was written
  kImport,      // of a run, in train.output: it wrote no tensors
  kCheckpoint   // values are no longer those of the source
};

struct Manifest {
  ManifestKind kind = ManifestKind::kConversion;
  std::string source{};                           // the directory, as it was given
  std::vector<ManifestTensor> read{}, written{};  // by the forward pass
  std::vector<ManifestTensor> repeated{};         // of the source: equal to a tensor above
  std::vector<ManifestTensor> ignored{};          // of the source: the model does not use them
  std::vector<ManifestTensor> dropped{};          // of the source: left out, as was asked
  std::optional<LogitsComparison> logits{};       // of source and result
  std::optional<UpcycleOptions> upcycle{};        // noise was added after the comparison of logits
  std::string adapter{};                          // that was merged, as it was given; "": none
  // Not stored: tensors of a GGUF file that are F16, for no block of the wanted type divides their
  // rows.
  std::vector<std::string> in_f16{};
};

// What was done to a tensor: it was read, or written.
enum class Direction : std::uint8_t { kRead, kWritten };

// Where the elements of a tensor go. What experts of one parameter give is one part.
std::vector<ManifestPart> parts_of(const model::FileTensor& tensor, bool is_quantised = false,
                                   Direction direction = Direction::kRead);

// Fills in the checksums of tensors of mapped files.
template <class Files>
void hash_tensors(const Files& files, std::vector<ManifestTensor>& tensors) {
  io::parallel_tasks(std::ssize(tensors), io::threads_for_files(), [&](std::int64_t task) {
    ManifestTensor& tensor = tensors[static_cast<std::size_t>(task)];
    tensor.checksum = io::checksum_of_mapped(files, files.find(tensor.name)->data);
  });
}

// Tensors of a directory, hashed. Those that no parameter reads are added to `others`.
std::vector<ManifestTensor> describe(const model::WeightSource& source, Direction direction,
                                     std::vector<ManifestTensor>& others);

// Where the manifest of a model directory or file is.
std::filesystem::path manifest_path(const std::filesystem::path& model);
void write_manifest(const std::filesystem::path& directory, const Manifest& manifest);
void write_manifest_file(const std::filesystem::path& file, const Manifest& manifest);
// InvalidArgument where there is none, or where it does not say what it has to.
Manifest read_manifest(const std::filesystem::path& model);

// Every tensor that a manifest says the source holds.
std::vector<ManifestTensor> tensors_of_source(const Manifest& manifest);

// Differences of tensors from what a manifest says of them, a line each with the tensor's name.
std::vector<std::string> differences(const std::vector<ManifestTensor>& expected,
                                     const std::vector<ManifestTensor>& found);

// Differences between a model's values and those of a directory, a line for each tensor of
// `result`: every element has to be that of `read`, rounded as the tensor stores it.
model::ValueComparison compare_values(const model::StateReader& read,
                                      const model::WeightSource& result);

}  // namespace anabatic::train
