// SPDX-License-Identifier: Apache-2.0
// Manifests of a run: of what it read from files, in train.output, and of each of its checkpoints.
// Their hashes were computed in passing, when tensors were read or written.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/import_record.h"
#include "train/convert/manifest.h"
#include "train/run_config.h"

namespace anabatic::train {

// `source` is the directory or GGUF file that was read.
Manifest import_manifest(const model::ImportRecord& record, const std::string& source);

// Writes that of a run into train.output, which is made where it is absent. Nothing is written
// where the run has no output or read no files, nor into the directory that was read, where it
// could replace a manifest of convert.
void write_import_manifest(const RunConfig& run, const model::ImportRecord& record);

// `sums` are the checksums of the files that hold the tensors of `map`.
Manifest checkpoint_manifest(const model::WeightMap& map, model::SaveDType dtype,
                             const io::ChecksumManifest& sums, const std::string& source);

// As check_manifest, of a manifest of these two kinds. An import is compared with `source`, without
// one with the files that it names. A checkpoint is compared with its own files and checksums.json,
// and with the names, shapes and dtypes of `source`, because training changed the values.
std::vector<std::string> check_run_manifest(const std::filesystem::path& directory,
                                            const Manifest& manifest,
                                            const std::optional<std::filesystem::path>& source);

}  // namespace anabatic::train
