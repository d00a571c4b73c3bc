// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/checkpoint.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/log.h"
#include "base/text.h"
#include "io/safetensors_writer.h"
#include "model/lora/adapter.h"
#include "train/checkpoint/state_files.h"
#include "train/convert/run_manifest.h"
#include "train/ranks/run_mesh.h"
#include "train/sparsity/mask_manifest.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

// In the header of a safetensors file and in checksums.json, for one tensor, about.
constexpr std::int64_t kBytesBesideTensor = 200;
constexpr std::int64_t kBytesInManifest = 300;  // of a file tensor, about

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) elements *= size;
  return elements;
}

std::int64_t bytes_of_weights(const ModelSession& session) {
  std::int64_t bytes = 0;
  if (const model::Adapter* adapter = session.config().adapter.get()) {
    for (const model::AdapterGroup& group : adapter->groups)
      bytes += group.num_elements() * size_bytes(DType::kFloat32) +
               static_cast<std::int64_t>(1 + group.parts.size()) * kBytesBesideTensor;
    return bytes;
  }
  const bool is_fp32 = session.run().train.save_dtype == "fp32";
  for (const model::FileTensor& tensor : session.weight_map().tensors)
    bytes += elements_of(tensor.shape) * size_bytes(is_fp32 ? DType::kFloat32 : tensor.dtype) +
             kBytesBesideTensor + kBytesInManifest;
  return bytes;
}

BoxMap boxes_of(const ModelSession& session) {
  return share_out(session.saved_states(), num_ranks(session.run()), bytes_of_weights(session));
}

}  // namespace

fs::path save_checkpoint(const fs::path& output, ModelSession& session,
                         const CheckpointProgress& progress, const Retention& retention,
                         const SharedWrite& write_shared) {
  const RunConfig& run = session.run();
  return commit_checkpoint(output, progress.step, retention, [&](const fs::path& directory) {
    CheckpointProgress written = progress;
    io::ChecksumManifest sums;
    if (write_shared) {
      written.boxes = boxes_of(session);
      require_whole(written.boxes, "[checkpoint] what the ranks write");
      sums = write_shared(directory, written.boxes);
    } else {
      sums = session.export_model(directory);
      sums.merge(write_states(directory, session.store(), session.saved_states()));
    }
    const auto dtype =
        run.train.save_dtype == "fp32" ? model::SaveDType::kFloat32 : model::SaveDType::kSource;
    if (!session.config().adapter)
      write_manifest(directory,
                     checkpoint_manifest(session.weight_map(), dtype, sums, run.model.path));
    if (const auto trained = session.trained_grid(progress.step)) {
      write_trained_grid(directory, *trained);
      log_info("[quantization] step {}: {}{}", progress.step, to_string(*trained),
               trained->has_begun ? "" : "; products read weights as they are");
    }
    if (const SparseParameters sparse = sparse_parameters(session); !sparse.empty())
      write_mask_manifest(mask_manifest_path(directory), sparse, directory);
    write_progress(directory, written);
    write_file_atomically(directory / kRunConfigFile, to_yaml(run));
    for (const auto& entry : fs::directory_iterator(directory)) {
      const std::string name = entry.path().filename().string();
      if (sums.count(name) == 0) sums[name] = io::checksums_of(entry.path());
    }
    io::write_checksums(directory, sums);
  });
}

void load_checkpoint(const fs::path& directory, ModelSession& session) {
  read_states(StateFiles(directory, read_progress(directory).boxes), session.store(),
              session.saved_states());
  if (!session.config().adapter) session.adopt_weight_map(directory);
}

CheckpointBytes bytes_of_checkpoint(const ModelSession& session) {
  const BoxMap boxes = boxes_of(session);
  std::map<std::string_view, std::int64_t> states;  // by file
  for (const SavedState& state : session.saved_states()) {
    const BoxedTensor& tensor = boxes.find(text(state.name))->second;
    for (const Box& box : tensor.boxes)
      states[box.file] +=
          box.num_rows * tensor.width() * size_bytes(state.type.dtype) + kBytesBesideTensor;
  }
  const std::int64_t weights = bytes_of_weights(session);
  CheckpointBytes bytes{
      .total = weights + session.bytes_beside_weights(),
      .largest_file = std::min(weights, io::SafetensorsWriterOptions().max_shard_bytes)};
  for (const auto& [file, of_file] : states) {
    bytes.total += of_file;
    bytes.largest_file = std::max(bytes.largest_file, of_file);
  }
  return bytes;
}

}  // namespace anabatic::train
