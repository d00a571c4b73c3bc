// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "io/problems.h"
#include "model/gguf_layout.h"

namespace anabatic::model {
namespace {

constexpr std::int64_t kMostElements = 256;  // of a block

bool has_pairs(const io::GgufFiles& files) {
  const auto name = files.metadata().text("general.architecture").value_or("");
  return std::ranges::any_of(gguf_architectures(), [&](const GgufArchitecture& each) {
    return each.name == name && each.has_pairs;
  });
}

DType dtype_of(const io::BlockType& type) {
  if (type.name == "BF16") return DType::kBFloat16;
  return type.name == "F16" ? DType::kFloat16 : DType::kFloat32;
}

}  // namespace

GgufSource::GgufSource(const ModelConfig& config, const std::filesystem::path& file)
    : files_(io::GgufFiles::open(file)), map_(gguf_weight_map(config, has_pairs(files_))) {
  match(file);
  for (FileTensor& tensor : map_.tensors) {
    tensor.dtype = dtype_of(*files_.find(tensor.name)->type);
    add_parts(tensor);
  }
  for (auto& [state, parts] : parts_) std::ranges::sort(parts, {}, &Part::offset);
}

void GgufSource::match(const std::filesystem::path& file) {
  std::vector<std::string> problems;
  std::set<std::string_view> used{kRopeFactors};  // read as a part of the config
  for (const FileTensor& expected : map_.tensors) {
    const std::string& name = expected.name;
    if (name.empty()) {
      problems.push_back(
          fmt::format("parameter {}: has no tensor in a GGUF file", expected.pieces.front().state));
      continue;
    }
    const io::GgufTensor* tensor = files_.find(name);
    if (tensor == nullptr) {
      problems.push_back(
          fmt::format("tensor {}: missing, expected shape {}", name, expected.shape));
      continue;
    }
    used.insert(tensor->name);
    if (tensor->shape != expected.shape)
      problems.push_back(
          fmt::format("tensor {}: expected shape {}, got {}", name, expected.shape, tensor->shape));
    if (tensor->type->dequantise == nullptr)
      problems.push_back(
          fmt::format("tensor {}: type {} is not supported", name, tensor->type->name));
  }
  for (const auto& [name, tensor] : files_.tensors())
    if (!used.contains(name))
      problems.push_back(
          fmt::format("tensor {}: surplus, shape {}", io::shown(name), tensor.shape));
  io::throw_if_any("gguf", file.string(), problems);
}

void GgufSource::add_parts(const FileTensor& tensor) {
  const io::GgufTensor* const entry = files_.find(tensor.name);
  for_runs(tensor, [&](std::string_view state, std::int64_t in_state, std::int64_t at,
                       std::int64_t count) {
    parts_.try_emplace(std::string(state)).first->second.push_back({in_state, count, at, entry});
  });
}

void GgufSource::read(std::string_view state, std::int64_t first, std::span<float> values) const {
  const auto found = parts_.find(state);
  ANABATIC_CHECK(found != parts_.end(), "[gguf] expected a parameter, got {}", state);
  const std::vector<Part>& parts = found->second;
  auto part = std::ranges::upper_bound(parts, first, {}, &Part::offset);
  ANABATIC_CHECK(part != parts.begin(), "[gguf] {}: no element {}", state, first);
  for (--part; !values.empty(); ++part) {
    ANABATIC_CHECK(part != parts.end() && first < part->offset + part->count,
                   "[gguf] {}: no element {}", state, first);
    const auto count = static_cast<std::size_t>(
        std::min(part->offset + part->count - first, static_cast<std::int64_t>(values.size())));
    read_tensor(*part->tensor, part->at + first - part->offset, values.first(count));
    values = values.subspan(count);
    first += static_cast<std::int64_t>(count);
  }
}

void GgufSource::read_tensor(const io::GgufTensor& tensor, std::int64_t first,
                             std::span<float> values) const {
  const io::BlockType& type = *tensor.type;
  const auto blocks = [&](std::int64_t element, std::int64_t count) {
    return tensor.data.subspan(static_cast<std::size_t>(element / type.elements * type.bytes),
                               static_cast<std::size_t>(count * type.bytes));
  };
  while (!values.empty()) {
    const std::int64_t skipped = first % type.elements;
    const std::int64_t whole = static_cast<std::int64_t>(values.size()) / type.elements;
    std::size_t count = static_cast<std::size_t>(whole * type.elements);
    if (skipped == 0 && whole > 0) {
      const auto data = blocks(first, whole);
      io::dequantise(type, data, values.first(count));
      if (data.size() >= io::kLeastReleased) files_.release(data);
    } else {  // a part of a block
      std::array<float, kMostElements> block;
      io::dequantise(type, blocks(first - skipped, 1),
                     std::span(block).first(static_cast<std::size_t>(type.elements)));
      count = std::min(values.size(), static_cast<std::size_t>(type.elements - skipped));
      std::copy_n(block.begin() + skipped, count, values.begin());
    }
    values = values.subspan(count);
    first += static_cast<std::int64_t>(count);
  }
}

}  // namespace anabatic::model
