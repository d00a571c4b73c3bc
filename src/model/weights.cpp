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

template <class Value>
std::span<Value> piece_of(std::span<Value> state, const WeightPiece& piece) {
  ANABATIC_CHECK(piece.offset + piece.count <= static_cast<std::int64_t>(state.size()),
                 "[weights] {}: expected at least {} values, got {}", piece.state,
                 piece.offset + piece.count, state.size());
  return state.subspan(static_cast<std::size_t>(piece.offset),
                       static_cast<std::size_t>(piece.count));
}

// In blocks whose pages are given back, so that reading needs little memory beside the states.
void read_piece(DType dtype, std::span<const std::byte> data, std::span<float> values) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  while (!values.empty()) {
    const std::size_t count = std::min(kBlock, values.size());
    const std::size_t num_bytes = count * static_cast<std::size_t>(size_bytes(dtype));
    to_floats(dtype, data.first(num_bytes), values.first(count));
    io::release_pages(data.first(num_bytes));
    data = data.subspan(num_bytes);
    values = values.subspan(count);
  }
}

// In blocks, so that converting needs little memory beside the states.
void write_piece(io::SafetensorsWriter& writer, const std::string& name, DType dtype,
                 std::span<const float> values, std::vector<std::byte>& scratch) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  if (dtype == DType::kFloat32) return writer.write(name, std::as_bytes(values));
  while (!values.empty()) {
    const std::span<const float> block = values.first(std::min(kBlock, values.size()));
    scratch.resize(block.size() * static_cast<std::size_t>(size_bytes(dtype)));
    from_floats(dtype, block, scratch);
    writer.write(name, scratch);
    values = values.subspan(block.size());
  }
}

}  // namespace

WeightMap import_weights(const ModelConfig& config, const std::filesystem::path& directory,
                         const StateBuffer& buffer) {
  const io::SafetensorsDirectory files = io::SafetensorsDirectory::open(directory);
  WeightMap map = match_weight_map(config, files, directory);
  require_tied_head(config, files, directory);
  for (const Parameter& parameter : parameters(config)) {
    const std::size_t size = buffer(parameter.name).size();
    ANABATIC_CHECK(static_cast<std::int64_t>(size) == parameter.num_elements(),
                   "[weights] {}: expected a buffer of {} values, got {}", parameter.name,
                   parameter.num_elements(), size);
  }
  for (const FileTensor& tensor : map.tensors) {
    std::span<const std::byte> data = files.find(tensor.name)->data;
    for (const WeightPiece& piece : tensor.pieces) {
      const auto num_bytes = static_cast<std::size_t>(piece.count * size_bytes(tensor.dtype));
      read_piece(tensor.dtype, data.first(num_bytes), piece_of(buffer(piece.state), piece));
      data = data.subspan(num_bytes);
    }
  }
  return map;
}

void export_weights(const WeightMap& map, const std::filesystem::path& directory, SaveDType dtype,
                    const StateValues& values, const io::SafetensorsWriterOptions& options) {
  const auto written_dtype = [&](const FileTensor& tensor) {
    return dtype == SaveDType::kFloat32 ? DType::kFloat32 : tensor.dtype;
  };
  std::vector<io::TensorInfo> infos;
  for (const FileTensor& tensor : map.tensors)
    infos.push_back({tensor.name, written_dtype(tensor), tensor.shape});
  io::SafetensorsWriter writer(directory, std::move(infos), options);
  std::vector<std::byte> scratch;
  for (const FileTensor& tensor : map.tensors)
    for (const WeightPiece& piece : tensor.pieces)
      write_piece(writer, tensor.name, written_dtype(tensor), piece_of(values(piece.state), piece),
                  scratch);
  writer.finish();
}

}  // namespace anabatic::model
