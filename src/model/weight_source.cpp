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
    std::int64_t at = 0;
    for (const WeightPiece& piece : tensor.pieces) {
      parts_[piece.state].push_back({piece.offset, piece.count, at, files_.find(tensor.name)});
      at += piece.count;
    }
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
    const DType dtype = *part->tensor->dtype;
    const auto size = static_cast<std::size_t>(size_bytes(dtype));
    const std::span<const std::byte> bytes =
        part->tensor->data.subspan(static_cast<std::size_t>(part->at + first - part->offset) * size,
                                   static_cast<std::size_t>(count) * size);
    to_floats(dtype, bytes, values.first(static_cast<std::size_t>(count)));
    if (bytes.size() >= kLeastReleased) files_.release(bytes);
    values = values.subspan(static_cast<std::size_t>(count));
    first += count;
  }
}

}  // namespace anabatic::model
