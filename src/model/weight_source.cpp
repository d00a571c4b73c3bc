// SPDX-License-Identifier: Apache-2.0
#include "model/weight_source.h"

#include <algorithm>

#include "base/error.h"
#include "io/parallel.h"
#include "model/transpose.h"
#include "model/weight_files.h"

namespace anabatic::model {

WeightSource::WeightSource(const ModelConfig& config, const std::filesystem::path& directory)
    : files_(io::SafetensorsDirectory::open(directory)),
      map_(match_weight_map(config, files_, directory)) {
  require_equal_repeats(config, map_, files_, directory);
  for (const FileTensor& tensor : map_.tensors) {
    const StoredTensor* const stored =
        &stored_.emplace(tensor.name, find_stored(files_, tensor.name)).first->second;
    for_runs(tensor, [&](std::string_view state, std::int64_t in_state, std::int64_t at,
                         std::int64_t count) {
      std::vector<Part>& parts = parts_.try_emplace(std::string(state)).first->second;
      if (!parts.empty() && parts.back().continues_at(in_state, at, stored))
        parts.back().count += count;
      else
        parts.push_back({in_state, count, at, stored, tensor.is_transposed});
    });
  }
  for (auto& [state, parts] : parts_)
    std::sort(parts.begin(), parts.end(),
              [](const Part& a, const Part& b) { return a.offset < b.offset; });
}

const StoredTensor& WeightSource::stored(std::string_view tensor) const {
  const auto found = stored_.find(tensor);
  ANABATIC_CHECK(found != stored_.end(), "[weights] expected a tensor of the map, got {}", tensor);
  return found->second;
}

bool WeightSource::is_quantised() const {
  return std::any_of(stored_.begin(), stored_.end(),
                     [](const auto& named) { return named.second.is_quantised(); });
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
  const StoredTensor& stored = *part.tensor;
  if (!part.is_transposed) {
    const std::int64_t begin = part.at + first;
    stored.read(begin, values);
    const auto bytes = stored.bytes_of(begin, static_cast<std::int64_t>(values.size()));
    if (bytes.size() >= io::kLeastReleased) files_.release(bytes);
    return;
  }
  while (!values.empty()) {
    const std::vector<std::int64_t>& shape = stored.elements->shape;
    const std::int64_t matrix = shape.back() * *(shape.end() - 2), at = part.at + first,
                       in_matrix = at % matrix;
    const auto count = static_cast<std::size_t>(
        std::min(matrix - in_matrix, static_cast<std::int64_t>(values.size())));
    const auto whole = turned(stored, at - in_matrix);
    std::copy_n(whole->values.begin() + in_matrix, count, values.begin());
    values = values.subspan(count);
    first += static_cast<std::int64_t>(count);
  }
}

// Files have a matrix [rows, columns] as [columns, rows].
std::shared_ptr<const WeightSource::Turned> WeightSource::turned(const StoredTensor& tensor,
                                                                 std::int64_t begin) const {
  const auto is_it = [&](const auto& each) {
    return each->tensor == &tensor && each->begin == begin;
  };
  {
    const std::lock_guard lock(lately_->mutex);
    const auto found = std::ranges::find_if(lately_->matrices, is_it);
    if (found != lately_->matrices.end()) return *found;
  }
  constexpr std::int64_t kLeastAtOnce = std::int64_t{1} << 16;
  const std::vector<std::int64_t>& shape = tensor.elements->shape;
  const std::int64_t rows = shape.back(), columns = *(shape.end() - 2),
                     strip = std::clamp<std::int64_t>(kLeastAtOnce / rows, 32, columns + 32);
  auto result = std::make_shared<Turned>(Turned{&tensor, begin, {}});
  result->values.resize(static_cast<std::size_t>(rows * columns));
  std::vector<float> of_strip;
  for (std::int64_t column = 0; column < columns; column += strip) {
    of_strip.resize(static_cast<std::size_t>(std::min(strip, columns - column) * rows));
    tensor.read(begin + column * rows, of_strip);
    transpose(of_strip, rows, std::span(result->values).subspan(static_cast<std::size_t>(column)),
              columns);
  }
  files_.release(tensor.bytes_of(begin, rows * columns));
  const std::lock_guard lock(lately_->mutex);
  auto& matrices = lately_->matrices;
  if (std::ranges::none_of(matrices, is_it)) matrices.push_back(result);
  if (std::ssize(matrices) > io::threads_for_files()) matrices.erase(matrices.begin());
  return result;
}

}  // namespace anabatic::model
