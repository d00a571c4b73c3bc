// SPDX-License-Identifier: Apache-2.0
#include "train/convert/run_manifest.h"

#include <map>

#include "base/error.h"
#include "io/gguf.h"
#include "model/weight_files.h"
#include "train/convert/stored_model.h"
#include "train/model_session.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

// Whether values of this dtype stand for themselves, rather than for those of a block.
bool is_plain(std::string_view dtype) {
  for (const DType plain : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    if (dtype == io::safetensors_name(plain)) return true;
  return false;
}

ManifestTensor describe(const model::ImportedTensor& imported) {
  return {.name = imported.tensor.name,
          .dtype = imported.dtype,
          .shape = imported.tensor.shape,
          .checksum = imported.checksum,
          .parts = parts_of(imported.tensor, !is_plain(imported.dtype))};
}

std::vector<ManifestTensor> describe(const std::vector<model::ImportedTensor>& imported) {
  std::vector<ManifestTensor> tensors;
  tensors.reserve(imported.size());
  for (const model::ImportedTensor& tensor : imported) tensors.push_back(describe(tensor));
  return tensors;
}

std::vector<std::string> check_import(const Manifest& manifest, const fs::path& source) {
  model::ImportRecord record;
  model::import_weights(
      load_whole(source), source, [](std::string_view, std::int64_t, std::span<const float>) {},
      record);
  const Manifest now = import_manifest(record, source.string());
  std::vector<std::string> problems =
      differences(tensors_of_source(manifest), tensors_of_source(now));
  for (std::string& problem : problems) problem = fmt::format("{}: {}", source.string(), problem);
  return problems;
}

// The hashes of a checkpoint's manifest and those of its checksums.json are the same ones.
void compare_checksums(const fs::path& directory, const Manifest& manifest,
                       std::vector<std::string>& problems) {
  const auto sums = io::read_checksums(directory);
  if (!sums) return problems.push_back(fmt::format("{}: missing", io::kChecksumsFile));
  std::map<std::string_view, std::uint64_t> stored;
  for (const ManifestTensor& tensor : manifest.written)
    for (const auto& [name, file] : *sums)
      if (const auto found = file.tensors.find(tensor.name); found != file.tensors.end())
        stored.emplace(found->first, found->second);
  for (const ManifestTensor& tensor : manifest.written) {
    const auto found = stored.find(tensor.name);
    if (found == stored.end())
      problems.push_back(fmt::format("{}: not in {}", tensor.name, io::kChecksumsFile));
    else if (found->second != tensor.checksum)
      problems.push_back(
          fmt::format("{}: {}", io::kChecksumsFile,
                      io::checksum_mismatch(tensor.name, tensor.checksum, found->second)));
  }
}

// What a checkpoint of a run from `source` holds, without values. Tensors that `written` has in F32
// may come from any dtype (train.save_dtype). Layers of multi-token prediction are left out where
// the config of the checkpoint names none.
std::vector<ManifestTensor> form_of(const fs::path& source, const model::ModelConfig& of_checkpoint,
                                    const std::vector<ManifestTensor>& written) {
  const model::ModelConfig config = load_whole(source, !of_checkpoint.mtp_layers.empty());
  model::WeightMap map =
      io::is_gguf(source) ? model::make_weight_map(config) : model::read_weight_map(config, source);
  if (const std::size_t spelling = model::export_spelling(map); spelling != map.spelling)
    map = model::respelled(config, map, spelling);
  model::use_own_names(config, map);
  std::map<std::string_view, std::string_view> dtypes;
  for (const ManifestTensor& tensor : written) dtypes.emplace(tensor.name, tensor.dtype);
  std::vector<ManifestTensor> tensors;
  for (const model::FileTensor& tensor : map.tensors) {
    const auto found = dtypes.find(tensor.name);
    const bool is_widened = found != dtypes.end() && found->second == "F32";
    tensors.push_back(
        {.name = tensor.name,
         .dtype = std::string(is_widened ? "F32" : io::safetensors_name(tensor.dtype)),
         .shape = tensor.shape});
  }
  return tensors;
}

std::vector<std::string> check_checkpoint(const fs::path& directory, const Manifest& manifest,
                                          const std::optional<fs::path>& source) {
  const model::ModelConfig config = load_whole(directory);
  const model::WeightSource found(config, directory);
  std::vector<ManifestTensor> others, tensors = describe(found, Direction::kWritten, others);
  tensors.insert(tensors.end(), others.begin(), others.end());
  std::vector<std::string> problems = differences(manifest.written, tensors);
  compare_checksums(directory, manifest, problems);
  if (!source) return problems;
  std::vector<ManifestTensor> written = manifest.written;
  for (ManifestTensor& tensor : written) tensor.checksum = 0;
  for (const std::string& line : differences(form_of(*source, config, written), written))
    problems.push_back(fmt::format("as {} has it: {}", source->string(), line));
  return problems;
}

}  // namespace

Manifest import_manifest(const model::ImportRecord& record, const std::string& source) {
  return {.kind = ManifestKind::kImport,
          .source = source,
          .read = describe(record.used),
          .repeated = describe(record.repeated),
          .ignored = describe(record.ignored),
          .dropped = describe(record.dropped)};
}

void write_import_manifest(const RunConfig& run, const model::ImportRecord& record) {
  const fs::path output = run.train.output;
  std::error_code absent;
  if (output.empty() || run.model.init == "random" ||
      fs::equivalent(model_directory(run.model.path), output, absent))
    return;
  fs::create_directories(output);
  write_manifest(output, import_manifest(record, run.model.path));
}

Manifest checkpoint_manifest(const model::WeightMap& map, model::SaveDType dtype,
                             const io::ChecksumManifest& sums, const std::string& source) {
  std::map<std::string_view, std::uint64_t> checksums;
  for (const auto& [name, file] : sums)
    for (const auto& [tensor, sum] : file.tensors) checksums.emplace(tensor, sum);
  Manifest manifest{.kind = ManifestKind::kCheckpoint, .source = source};
  for (const model::FileTensor& tensor : map.tensors) {
    const auto sum = checksums.find(tensor.name);
    ANABATIC_CHECK(sum != checksums.end(), "[manifest] expected a checksum of {}, got none",
                   tensor.name);
    const DType written = dtype == model::SaveDType::kFloat32 ? DType::kFloat32 : tensor.dtype;
    manifest.written.push_back({.name = tensor.name,
                                .dtype = std::string(io::safetensors_name(written)),
                                .shape = tensor.shape,
                                .checksum = sum->second,
                                .parts = parts_of(tensor)});
  }
  return manifest;
}

std::vector<std::string> check_run_manifest(const fs::path& directory, const Manifest& manifest,
                                            const std::optional<fs::path>& source) {
  if (manifest.kind == ManifestKind::kCheckpoint)
    return check_checkpoint(directory, manifest, source);
  return check_import(manifest, source.value_or(manifest.source));
}

}  // namespace anabatic::train
