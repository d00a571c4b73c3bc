// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors_writer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/json.h"
#include "base/rounding.h"
#include "base/text.h"
#include "io/safetensors.h"

namespace anabatic::io {
namespace {

std::int64_t checked_bytes(const TensorInfo& info) {
  std::int64_t bytes = size_bytes(info.dtype);
  for (const std::int64_t extent : info.shape) {
    ANABATIC_REQUIRE(extent >= 0 && !__builtin_mul_overflow(bytes, extent, &bytes),
                     "[safetensors] {}: expected a shape whose bytes fit 63 bits, got {}",
                     info.name, info.shape);
  }
  return bytes;
}

std::filesystem::path partial(const std::filesystem::path& path) {
  return path.string() + ".partial";
}

}  // namespace

SafetensorsWriter::~SafetensorsWriter() {
  std::error_code ignored;
  for (const File& file : files_) std::filesystem::remove(file.path(), ignored);
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& directory,
                                     std::vector<TensorInfo> tensors,
                                     const SafetensorsWriterOptions& options)
    : SafetensorsWriter() {  // so that the destructor runs when this throws
  directory_ = directory;
  declare(tensors, options.max_shard_bytes);
  if (num_shards_ == 1) {
    shard_names_.push_back(options.stem + ".safetensors");
  } else {
    for (std::size_t i = 1; i <= num_shards_; ++i) {
      shard_names_.push_back(
          fmt::format("{}-{:05}-of-{:05}.safetensors", options.stem, i, num_shards_));
    }
    index_name_ = options.stem + ".safetensors.index.json";
  }
  for (std::size_t i = 0; i < num_shards_; ++i) create_shard(i, tensors);
}

SafetensorsWriter SafetensorsWriter::single_file(const std::filesystem::path& path,
                                                 std::vector<TensorInfo> tensors) {
  SafetensorsWriter writer;
  const std::filesystem::path target = replaceable_file(path);
  writer.directory_ = target.has_parent_path() ? target.parent_path() : ".";
  writer.declare(tensors, INT64_MAX);
  writer.shard_names_.push_back(target.filename().string());
  writer.create_shard(0, tensors);
  return writer;
}

void SafetensorsWriter::declare(const std::vector<TensorInfo>& tensors,
                                std::int64_t max_shard_bytes) {
  std::int64_t shard_bytes = 0;
  num_shards_ = 1;
  for (const TensorInfo& info : tensors) {
    ANABATIC_REQUIRE(info.name != "__metadata__",
                     "[safetensors] the format reserves the name __metadata__");
    const std::int64_t bytes = checked_bytes(info);
    if (shard_bytes > 0 && bytes > max_shard_bytes - shard_bytes) {
      ++num_shards_;
      shard_bytes = 0;
    }
    const bool added =
        tensors_.try_emplace(info.name, Tensor{.shard = num_shards_ - 1, .size_bytes = bytes})
            .second;
    ANABATIC_REQUIRE(added, "[safetensors] the name {} is declared twice", info.name);
    ANABATIC_REQUIRE(!__builtin_add_overflow(total_bytes_, bytes, &total_bytes_),
                     "[safetensors] the sum of all tensors overflows at {}", info.name);
    shard_bytes += bytes;
    num_elements_ += bytes / size_bytes(info.dtype);
  }
}

void SafetensorsWriter::create_shard(std::size_t shard, const std::vector<TensorInfo>& tensors) {
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& info : tensors) {
    if (tensors_.find(info.name)->second.shard == shard) order.push_back(&info);
  }
  std::ranges::sort(order, [](const TensorInfo* a, const TensorInfo* b) {
    return std::tuple(-size_bytes(a->dtype), std::string_view(a->name)) <
           std::tuple(-size_bytes(b->dtype), std::string_view(b->name));
  });
  // As text from the start: JSON values of many thousand tensors would take more than their names.
  std::string text = R"({"__metadata__":{"format":"pt"})";
  std::int64_t offset = 0;
  for (const TensorInfo* info : order) {
    Tensor& tensor = tensors_.find(info->name)->second;
    fmt::format_to(std::back_inserter(text),
                   R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                   dump_json(Json(info->name)), safetensors_name(info->dtype),
                   fmt::join(info->shape, ","), offset, offset + tensor.size_bytes);
    tensor.offset = offset;
    offset += tensor.size_bytes;
  }
  text += '}';
  text.resize(round_up(text.size(), 8), ' ');  // data starts 8-byte aligned
  const std::uint64_t header_bytes = text.size();
  const auto data_begin = static_cast<std::int64_t>(8 + header_bytes);
  for (const TensorInfo* info : order) tensors_.find(info->name)->second.offset += data_begin;
  files_.push_back(File::create(partial(directory_ / shard_names_[shard])));
  const File& file = files_.back();
  file.resize(data_begin + offset);
  Checksum sum;
  const auto put = [&](std::int64_t at, std::span<const std::byte> bytes) {
    sum.add(bytes);
    file.write_at(at, bytes);
  };
  put(0, std::as_bytes(std::span(&header_bytes, 1)));
  put(8, std::as_bytes(std::span(text)));
  checksums_.push_back({.bytes = data_begin + offset, .content = sum.value(), .tensors = {}});
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  const auto place = tensors_.find(name);
  ANABATIC_REQUIRE(place != tensors_.end(), "[safetensors] {} was not declared", name);
  Tensor& tensor = place->second;
  const auto count = static_cast<std::int64_t>(bytes.size());
  ANABATIC_REQUIRE(count <= tensor.size_bytes - tensor.written_bytes,
                   "[safetensors] {}: expected {} bytes in all, got {} after {}", name,
                   tensor.size_bytes, count, tensor.written_bytes);
  files_[tensor.shard].write_at(tensor.offset + tensor.written_bytes, bytes);
  tensor.written_bytes += count;
  if (!tensor.sum) tensor.sum.emplace();
  tensor.sum->add(bytes);
  if (tensor.written_bytes < tensor.size_bytes) return;
  tensor.checksum = tensor.sum->value();
  tensor.sum.reset();
}

ChecksumManifest SafetensorsWriter::finish() {
  std::string missing;
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.written_bytes == tensor.size_bytes) continue;
    missing += fmt::format("\n  {}: {} of {} bytes written", name, tensor.written_bytes,
                           tensor.size_bytes);
  }
  ANABATIC_REQUIRE(missing.empty(), "[safetensors] {}: incomplete tensors{}", directory_.string(),
                   missing);
  for (const File& file : files_) file.sync();
  for (std::size_t i = 0; i < files_.size(); ++i) {
    files_[i].close();
    rename_file(files_[i].path(), directory_ / shard_names_[i]);
  }
  files_.clear();
  const std::uint64_t nothing = Checksum().value();  // of a tensor without elements
  for (const auto& [name, tensor] : tensors_)
    checksums_[tensor.shard].tensors[name] = tensor.size_bytes > 0 ? tensor.checksum : nothing;
  ChecksumManifest manifest;
  for (std::size_t i = 0; i < checksums_.size(); ++i)
    manifest[shard_names_[i]] = std::move(checksums_[i]);
  if (!index_name_.empty()) {
    OrderedJson index;
    index["metadata"]["total_parameters"] = num_elements_;
    index["metadata"]["total_size"] = total_bytes_;
    index["weight_map"] = OrderedJson::object();
    // Names are unique: as of a list, without a search for each.
    auto& members = index["weight_map"].get_ref<OrderedJson::object_t&>();
    for (const auto& [name, tensor] : tensors_)
      static_cast<OrderedJson::object_t::Container&>(members).emplace_back(
          name, shard_names_[tensor.shard]);
    write_file_atomically(directory_ / index_name_, dump_json(index, 2) + "\n");
    manifest[index_name_] = checksums_of(directory_ / index_name_);
  }
  sync_directory(directory_);
  return manifest;
}

}  // namespace anabatic::io
