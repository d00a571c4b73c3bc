// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "io/file.h"
#include "model/float_conversion.h"
#include "model/gguf_model.h"
#include "model/weight_files.h"

namespace anabatic::model {
namespace {

constexpr std::int64_t kBlock = std::int64_t{1} << 18;

DType saved_dtype(const FileTensor& tensor, SaveDType dtype) {
  return dtype == SaveDType::kFloat32 ? DType::kFloat32 : tensor.dtype;
}

DType most_of(const std::map<DType, std::int64_t>& elements) {
  return std::max_element(elements.begin(), elements.end(),
                          [](const auto& a, const auto& b) {
                            return std::pair(a.second, size_bytes(a.first)) <
                                   std::pair(b.second, size_bytes(b.first));
                          })
      ->first;
}

// Reads blocks and releases their pages, so that little memory is needed in addition to the states.
void read_piece(const io::SafetensorsDirectory& files, DType dtype, std::span<const std::byte> data,
                const WeightPiece& piece, const StateWriter& write, std::vector<float>& scratch,
                io::Checksum& sum) {
  for (std::int64_t done = 0; done < piece.count; done += kBlock) {
    const std::int64_t count = std::min(kBlock, piece.count - done);
    const auto block = data.first(static_cast<std::size_t>(count * size_bytes(dtype)));
    scratch.resize(static_cast<std::size_t>(count));
    sum.add(block);
    to_floats(dtype, block, scratch);
    write(piece.state, piece.offset + done, scratch);
    files.release(block);
    data = data.subspan(block.size());
  }
}

// Converts blocks, so that little memory is needed in addition to the states.
void write_piece(io::SafetensorsWriter& writer, const std::string& name, DType dtype,
                 const WeightPiece& piece, const StateReader& read, std::vector<float>& values,
                 std::vector<std::byte>& bytes) {
  for (std::int64_t done = 0; done < piece.count; done += kBlock) {
    values.resize(static_cast<std::size_t>(std::min(kBlock, piece.count - done)));
    read(piece.state, piece.offset + done, values);
    if (dtype == DType::kFloat32) {
      writer.write(name, std::as_bytes(std::span(values)));
      continue;
    }
    bytes.resize(values.size() * static_cast<std::size_t>(size_bytes(dtype)));
    from_floats(dtype, values, bytes);
    writer.write(name, bytes);
  }
}

// The checksums of a checkpoint's files, which are stored next to them.
class WrittenChecksums {
 public:
  explicit WrittenChecksums(const std::filesystem::path& directory) {
    if (std::filesystem::is_directory(directory)) manifest_ = io::read_checksums(directory);
  }

  void compare(const io::TensorEntry& entry, std::uint64_t found) {
    const io::FileChecksums* file = file_of(*entry.file);
    if (file == nullptr) return;
    const auto written = file->tensors.find(entry.name);
    ANABATIC_REQUIRE(written == file->tensors.end() || written->second == found,
                     "[weights] {}: {}; the file is damaged. If it was changed on purpose, remove "
                     "{} next to it",
                     entry.file->string(),
                     io::checksum_mismatch(entry.name, written->second, found), io::kChecksumsFile);
  }

 private:
  // Null without checksums, or where they are for another file.
  const io::FileChecksums* file_of(const std::filesystem::path& path) {
    if (!manifest_) return nullptr;
    const auto [known, is_new] = files_.try_emplace(path, nullptr);
    if (!is_new) return known->second;
    const auto written = manifest_->find(path.filename().string());
    const io::FileChecksums header = io::header_checksum(path);
    if (written != manifest_->end() && written->second.bytes == header.bytes &&
        written->second.content == header.content) {
      known->second = &written->second;
    } else {
      log_warning(
          "[weights] {} is not the file that {} was written for: its tensors are not checked",
          path.string(), io::kChecksumsFile);
    }
    return known->second;
  }

  std::optional<io::ChecksumManifest> manifest_;
  std::map<std::filesystem::path, const io::FileChecksums*> files_;
};

}  // namespace

WeightMap import_weights(const ModelConfig& config, const std::filesystem::path& directory,
                         const StateWriter& write) {
  if (io::is_gguf(directory)) return import_gguf(config, directory, write);
  const io::SafetensorsDirectory files = io::SafetensorsDirectory::open(directory);
  WeightMap map = match_weight_map(config, files, directory);
  require_equal_repeats(config, map, files, directory);
  WrittenChecksums checksums(directory);
  std::vector<float> scratch;
  for (const FileTensor& tensor : map.tensors) {
    const io::TensorEntry& entry = *files.find(tensor.name);
    std::span<const std::byte> data = entry.data;
    io::Checksum sum;
    for (const WeightPiece& piece : tensor.pieces) {
      const auto num_bytes = static_cast<std::size_t>(piece.count * size_bytes(tensor.dtype));
      read_piece(files, tensor.dtype, data.first(num_bytes), piece, write, scratch, sum);
      data = data.subspan(num_bytes);
    }
    checksums.compare(entry, sum.value());
  }
  return map;
}

DType dominant_dtype(const WeightMap& map, SaveDType dtype) {
  std::map<DType, std::int64_t> elements;
  for (const FileTensor& tensor : map.tensors)
    for (const WeightPiece& piece : tensor.pieces)
      elements[saved_dtype(tensor, dtype)] += piece.count;
  return most_of(elements);
}

std::optional<DType> stored_dtype(const std::filesystem::path& directory) {
  if (!std::filesystem::exists(directory / "model.safetensors") &&
      !std::filesystem::exists(directory / "model.safetensors.index.json"))
    return std::nullopt;
  std::map<DType, std::int64_t> elements;
  const io::SafetensorsDirectory files = io::SafetensorsDirectory::open(directory);
  for (const auto& [name, entry] : files.entries())
    if (entry.dtype && is_weight_dtype(*entry.dtype))
      elements[*entry.dtype] += entry.num_elements();
  return elements.empty() ? std::nullopt : std::optional(most_of(elements));
}

std::string_view config_name(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kFloat64:
      return "float64";
    default:
      return "float32";
  }
}

io::ChecksumManifest export_weights(const WeightMap& map, const std::filesystem::path& directory,
                                    SaveDType dtype, const StateReader& read,
                                    const io::SafetensorsWriterOptions& options) {
  std::vector<io::TensorInfo> infos;
  for (const FileTensor& tensor : map.tensors)
    infos.push_back({tensor.name, saved_dtype(tensor, dtype), tensor.shape});
  io::SafetensorsWriter writer(directory, std::move(infos), options);
  std::vector<float> values;
  std::vector<std::byte> bytes;
  for (const FileTensor& tensor : map.tensors)
    for (const WeightPiece& piece : tensor.pieces)
      write_piece(writer, tensor.name, saved_dtype(tensor, dtype), piece, read, values, bytes);
  return writer.finish();
}

}  // namespace anabatic::model
