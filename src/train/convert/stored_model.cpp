// SPDX-License-Identifier: Apache-2.0
#include "train/convert/stored_model.h"

#include <algorithm>
#include <set>

#include "model/gguf_export.h"
#include "model/mtp.h"

namespace anabatic::train {
namespace {

// Without its hash.
ManifestTensor describe_tensor(const io::GgufTensor& tensor) {
  ManifestTensor described{.name = tensor.name,
                           .dtype = std::string(tensor.type->name),
                           .shape = tensor.shape,
                           .checksum = 0,
                           .parts = {},
                           .bytes = static_cast<std::int64_t>(tensor.data.size())};
  if (tensor.type->elements > 1) described.format = described.dtype;
  return described;
}

std::vector<ManifestTensor> describe_gguf(const model::GgufSource& source, Direction direction,
                                          std::vector<ManifestTensor>& others) {
  std::vector<ManifestTensor> tensors;
  std::set<std::string_view> used;
  for (const model::FileTensor& tensor : source.map().tensors) {
    const io::GgufTensor& entry = *source.files().find(tensor.name);
    used.insert(tensor.name);
    tensors.push_back(describe_tensor(entry));
    tensors.back().parts = parts_of(tensor, entry.type->elements > 1, direction);
  }
  // The factors of frequencies are a part of the config.
  for (const auto& [name, entry] : source.files().tensors())
    if (!used.contains(name))
      (name == model::kRopeFactors ? tensors : others).push_back(describe_tensor(entry));
  hash_tensors(source.files(), tensors);
  hash_tensors(source.files(), others);
  return tensors;
}

}  // namespace

model::ModelConfig load_whole(const std::filesystem::path& path, bool keeps_mtp) {
  model::ModelConfig config = model::load_config(path);
  if (keeps_mtp && !io::is_gguf(path) && model::holds_mtp(config, path))
    model::take_mtp(config, false);
  return config;
}

StoredModel::Files StoredModel::open(const model::ModelConfig& config,
                                     const std::filesystem::path& path) {
  if (io::is_gguf(path)) return model::GgufSource(config, path);
  return model::WeightSource(config, path);
}

StoredModel::StoredModel(const std::filesystem::path& path, bool keeps_mtp)
    : config_(load_whole(path, keeps_mtp)), files_(open(config_, path)) {}

const model::WeightMap& StoredModel::map() const {
  return std::visit([](const auto& files) -> const model::WeightMap& { return files.map(); },
                    files_);
}

model::StateReader StoredModel::reader() const {
  return [this](std::string_view state, std::int64_t first, std::span<float> values) {
    std::visit([&](const auto& files) { files.read(state, first, values); }, files_);
  };
}

bool StoredModel::is_quantised() const {
  if (const auto* source = directory()) return source->is_quantised();
  const auto& gguf = std::get<model::GgufSource>(files_);
  return std::ranges::any_of(gguf.map().tensors, [&](const model::FileTensor& tensor) {
    return gguf.files().find(tensor.name)->type->elements > 1;
  });
}

std::vector<ManifestTensor> StoredModel::describe(Direction direction,
                                                  std::vector<ManifestTensor>& others) const {
  if (const auto* gguf = std::get_if<model::GgufSource>(&files_))
    return describe_gguf(*gguf, direction, others);
  return train::describe(std::get<model::WeightSource>(files_), direction, others);
}

model::ValueComparison StoredModel::compare(const model::StateReader& source) const {
  if (const auto* gguf = std::get_if<model::GgufSource>(&files_))
    return model::compare_blocks(source, *gguf);
  return compare_values(source, std::get<model::WeightSource>(files_));
}

}  // namespace anabatic::train
