// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <algorithm>

#include "base/error.h"
#include "io/file.h"
#include "model/float_conversion.h"
#include "model/parameters.h"
#include "model/weight_files.h"

namespace anabatic::model {
namespace {

constexpr std::int64_t kBlock = std::int64_t{1} << 18;

// In blocks whose pages are given back, so that reading needs little memory beside the states.
void read_piece(const io::SafetensorsDirectory& files, DType dtype, std::span<const std::byte> data,
                const WeightPiece& piece, const StateWriter& write, std::vector<float>& scratch) {
  for (std::int64_t done = 0; done < piece.count; done += kBlock) {
    const std::int64_t count = std::min(kBlock, piece.count - done);
    const auto block = data.first(static_cast<std::size_t>(count * size_bytes(dtype)));
    scratch.resize(static_cast<std::size_t>(count));
    to_floats(dtype, block, scratch);
    write(piece.state, piece.offset + done, scratch);
    files.release(block);
    data = data.subspan(block.size());
  }
}

// In blocks, so that converting needs little memory beside the states.
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

}  // namespace

WeightMap import_weights(const ModelConfig& config, const std::filesystem::path& directory,
                         const StateWriter& write) {
  const io::SafetensorsDirectory files = io::SafetensorsDirectory::open(directory);
  WeightMap map = match_weight_map(config, files, directory);
  require_tied_head(config, files, directory);
  std::vector<float> scratch;
  for (const FileTensor& tensor : map.tensors) {
    std::span<const std::byte> data = files.find(tensor.name)->data;
    for (const WeightPiece& piece : tensor.pieces) {
      const auto num_bytes = static_cast<std::size_t>(piece.count * size_bytes(tensor.dtype));
      read_piece(files, tensor.dtype, data.first(num_bytes), piece, write, scratch);
      data = data.subspan(num_bytes);
    }
  }
  return map;
}

void export_weights(const WeightMap& map, const std::filesystem::path& directory, SaveDType dtype,
                    const StateReader& read, const io::SafetensorsWriterOptions& options) {
  const auto written_dtype = [&](const FileTensor& tensor) {
    return dtype == SaveDType::kFloat32 ? DType::kFloat32 : tensor.dtype;
  };
  std::vector<io::TensorInfo> infos;
  for (const FileTensor& tensor : map.tensors)
    infos.push_back({tensor.name, written_dtype(tensor), tensor.shape});
  io::SafetensorsWriter writer(directory, std::move(infos), options);
  std::vector<float> values;
  std::vector<std::byte> bytes;
  for (const FileTensor& tensor : map.tensors)
    for (const WeightPiece& piece : tensor.pieces)
      write_piece(writer, tensor.name, written_dtype(tensor), piece, read, values, bytes);
  writer.finish();
}

}  // namespace anabatic::model
