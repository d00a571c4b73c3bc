// SPDX-License-Identifier: Apache-2.0
#include "model/weight_source.h"

#include <algorithm>

#include "base/error.h"
#include "model/float_conversion.h"
#include "model/weight_files.h"

namespace anabatic::model {
namespace {

// Fewer bytes are not worth a call of the system.
constexpr std::size_t kLeastReleased = std::size_t{1} << 16;

}  // namespace

WeightSource::WeightSource(const ModelConfig& config, const std::filesystem::path& directory)
    : files_(io::SafetensorsDirectory::open(directory)),
      map_(match_weight_map(config, files_, directory)) {
  require_equal_repeats(config, map_, files_, directory);
  for (const FileTensor& tensor : map_.tensors) {
    const io::TensorEntry* const entry = files_.find(tensor.name);
    for_runs(tensor, [&](std::string_view state, std::int64_t in_state, std::int64_t at,
                         std::int64_t count) {
      std::vector<Part>& parts = parts_.try_emplace(std::string(state)).first->second;
      if (!parts.empty() && parts.back().continues_at(in_state, at, entry))
        parts.back().count += count;
      else
        parts.push_back({in_state, count, at, entry, tensor.is_transposed});
    });
  }
  for (auto& [state, parts] : parts_)
    std::sort(parts.begin(), parts.end(),
              [](const Part& a, const Part& b) { return a.offset < b.offset; });
}

void WeightSource::read(std::string_view state, std::int64_t first, std::span<float> values) const {
  const auto found = parts_.find(state);
  ANABATIC_CHECK(found != parts_.end(), "[weights] expected a parameter, got {}", state);
  const std::vector<Part>& parts = found->second;
  auto part = std::upper_bound(parts.begin(), parts.end(), first,
                               [](std::int64_t at, const Part& p) { return at < p.offset; });
  ANABATIC_CHECK(part != parts.begin(), "[weights] {}: no element {}", state, first);
  for (--part; !values.empty(); ++part) {
    ANABATIC_CHECK(part != parts.end() && first < part->offset + part->count,
                   "[weights] {}: no element {}", state, first);
    const std::int64_t count =
        std::min(part->offset + part->count - first, static_cast<std::int64_t>(values.size()));
    read_part(*part, first - part->offset, values.first(static_cast<std::size_t>(count)));
    values = values.subspan(static_cast<std::size_t>(count));
    first += count;
  }
}

void WeightSource::read_part(const Part& part, std::int64_t first, std::span<float> values) const {
  const DType dtype = *part.tensor->dtype;
  const auto size = static_cast<std::size_t>(size_bytes(dtype));
  const std::int64_t begin = part.at + first;
  if (!part.is_transposed) {
    const auto bytes =
        part.tensor->data.subspan(static_cast<std::size_t>(begin) * size, values.size() * size);
    to_floats(dtype, bytes, values);
    if (bytes.size() >= kLeastReleased) files_.release(bytes);
    return;
  }
  // Files have a matrix [rows, columns] as [columns, rows].
  const std::vector<std::int64_t>& shape = part.tensor->shape;
  const std::int64_t rows = shape.back(), columns = *(shape.end() - 2), matrix = rows * columns;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int64_t at = begin + static_cast<std::int64_t>(i), in_matrix = at % matrix;
    const std::int64_t in_file = at - in_matrix + in_matrix % columns * rows + in_matrix / columns;
    to_floats(dtype, part.tensor->data.subspan(static_cast<std::size_t>(in_file) * size, size),
              values.subspan(i, 1));
  }
}

}  // namespace anabatic::model
