// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/checksums.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "train/convert/run_manifest.h"
#include "train/state_rows.h"
#include "train/state_tiers.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

// Everything that the next step starts from, under the engine's own names: fp32 parameters and
// moments.
io::ChecksumManifest write_states(const fs::path& file, ModelSession& session) {
  std::vector<io::TensorInfo> infos;
  for (const SavedState& state : session.saved_states())
    infos.push_back({std::string(text(state.name)), state.type.dtype, state.type.shape});
  io::SafetensorsWriter writer = io::SafetensorsWriter::single_file(file, infos);
  for (const SavedState& state : session.saved_states())
    for_state_bytes(session.store(), state, [&](std::span<const std::byte> block) {
      writer.write(text(state.name), block);
    });
  return writer.finish();
}

void read_states(const fs::path& file, ModelSession& session) {
  const io::SafetensorsDirectory source = io::SafetensorsDirectory::open(file);
  std::string problems;
  std::vector<std::string> wanted;
  for (const SavedState& state : session.saved_states()) {
    const Name name = state.name;
    const TensorType& type = state.type;
    wanted.emplace_back(text(name));
    const io::TensorEntry* entry = source.find(text(name));
    if (entry == nullptr) {
      problems += fmt::format("\n  {}: missing", text(name));
    } else if (entry->dtype != type.dtype || entry->shape != type.shape) {
      problems += fmt::format("\n  {}: expected {}, found {} [{}]", text(name), to_string(type),
                              entry->dtype_name, fmt::join(entry->shape, ","));
    }
  }
  for (const std::string& name : source.names())
    if (std::find(wanted.begin(), wanted.end(), name) == wanted.end())
      problems += fmt::format("\n  {}: surplus", name);
  ANABATIC_REQUIRE(problems.empty(), "[checkpoint] {} does not fit this model:{}", file.string(),
                   problems);
  for (const SavedState& state : session.saved_states()) {
    const std::span<const std::byte> bytes = source.find(text(state.name))->data;
    const std::int64_t size = size_bytes(state.type.dtype);
    fill_state(session.store(), state, [&](std::int64_t first, std::span<std::byte> block) {
      const auto from = bytes.subspan(static_cast<std::size_t>(first * size), block.size());
      std::copy(from.begin(), from.end(), block.begin());
      source.release(from);
    });
  }
}

// In the header of a safetensors file and in checksums.json, for one tensor, about.
constexpr std::int64_t kBytesBesideTensor = 200;
constexpr std::int64_t kBytesInManifest = 300;  // of a file tensor, about

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) elements *= size;
  return elements;
}

}  // namespace

fs::path save_checkpoint(const fs::path& output, ModelSession& session,
                         const CheckpointProgress& progress, const Retention& retention) {
  const RunConfig& run = session.run();
  return commit_checkpoint(output, progress.step, retention, [&](const fs::path& directory) {
    io::ChecksumManifest sums = session.export_model(directory);
    const auto dtype =
        run.train.save_dtype == "fp32" ? model::SaveDType::kFloat32 : model::SaveDType::kSource;
    write_manifest(directory,
                   checkpoint_manifest(session.weight_map(), dtype, sums, run.model.path));
    sums.merge(write_states(directory / kStatesFile, session));
    write_progress(directory, progress);
    write_file_atomically(directory / kRunConfigFile, to_yaml(run));
    for (const auto& entry : fs::directory_iterator(directory)) {
      const std::string name = entry.path().filename().string();
      if (sums.count(name) == 0) sums[name] = io::checksums_of(entry.path());
    }
    io::write_checksums(directory, sums);
  });
}

void load_checkpoint(const fs::path& directory, ModelSession& session) {
  read_states(directory / kStatesFile, session);
  session.adopt_weight_map(directory);
}

CheckpointBytes bytes_of_checkpoint(const ModelSession& session) {
  std::int64_t states = 0, weights = 0;
  for (const SavedState& state : session.saved_states())
    states += state.type.num_elements() * size_bytes(state.type.dtype) + kBytesBesideTensor;
  const bool is_fp32 = session.run().train.save_dtype == "fp32";
  for (const model::FileTensor& tensor : session.weight_map().tensors)
    weights += elements_of(tensor.shape) * size_bytes(is_fp32 ? DType::kFloat32 : tensor.dtype) +
               kBytesBesideTensor + kBytesInManifest;
  return {.total = states + weights + session.bytes_beside_weights(),
          .largest_file =
              std::max(states, std::min(weights, io::SafetensorsWriterOptions().max_shard_bytes))};
}

}  // namespace anabatic::train
