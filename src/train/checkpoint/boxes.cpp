// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/boxes.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/text.h"

namespace anabatic::train {
namespace {

constexpr const char* kStem = "training_state-";

std::string rows_to_string(std::int64_t first, std::int64_t end) {
  return fmt::format("rows [{}, {})", first, end);
}

std::string problems_of(const std::string& name, const BoxedTensor& tensor) {
  std::string problems;
  const auto add = [&](std::int64_t first, std::int64_t end, const std::string& what) {
    problems += fmt::format("\n  {}: {} are {}", name, rows_to_string(first, end), what);
  };
  const std::int64_t num_rows = tensor.num_rows();
  std::int64_t end = 0;
  const std::string* file = nullptr;  // of the box that reaches to `end`
  for (const Box& box : tensor.boxes) {
    const std::int64_t box_end = box.first_row + box.num_rows;
    if (box.first_row > end) add(end, box.first_row, "in no file");
    if (box.first_row < end)
      add(box.first_row, std::min(end, box_end), fmt::format("in {} and in {}", *file, box.file));
    if (box_end < end) continue;
    end = box_end;
    file = &box.file;
  }
  if (end < num_rows) add(end, num_rows, "in no file");
  if (end > num_rows)
    add(num_rows, end, fmt::format("in {}, beyond the tensor's {} rows", *file, num_rows));
  return problems;
}

BoxedTensor read_tensor(const JsonNode& node) {
  BoxedTensor tensor{.dtype = node.at("dtype").as_string(), .shape = {}, .boxes = {}};
  std::int64_t elements = 1;
  for (const JsonNode& extent : node.at("shape").items()) {
    tensor.shape.push_back(extent.as_integer(0));
    if (__builtin_mul_overflow(elements, tensor.shape.back(), &elements))
      node.at("shape").refuse("a shape whose elements fit 63 bits");
  }
  for (const JsonNode& box : node.at("boxes").items()) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 2;
    const std::string file = box.at("file").as_string();
    if (!file.starts_with(kStem) || file.find('/') != std::string::npos)
      box.at("file").refuse(fmt::format("a file {}...", kStem));
    tensor.boxes.push_back(
        {box.at("first_row").as_integer(0, kMost), box.at("rows").as_integer(0, kMost), file});
  }
  std::ranges::sort(tensor.boxes, {}, &Box::first_row);
  return tensor;
}

}  // namespace

std::int64_t BoxedTensor::num_rows() const {
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  return rows;
}

std::vector<std::int64_t> BoxedTensor::shape_of(const Box& box) const {
  return box.num_rows == num_rows() ? shape : std::vector{box.num_rows, width()};
}

std::string states_file(std::int64_t rank, std::int64_t num_ranks) {
  return fmt::format("{}{:05}-of-{:05}.safetensors", kStem, rank + 1, num_ranks);
}

std::vector<std::string> files_of(const BoxMap& map) {
  std::set<std::string> files;
  for (const auto& [name, tensor] : map)
    for (const Box& box : tensor.boxes) files.insert(box.file);
  return {files.begin(), files.end()};
}

void require_whole(const BoxMap& map, std::string_view place) {
  std::string problems;
  for (const auto& [name, tensor] : map) problems += problems_of(name, tensor);
  ANABATIC_REQUIRE(problems.empty(), "{}: expected each row of each tensor in one file, but:{}",
                   place, problems);
}

Json to_json(const BoxMap& map) {
  Json tensors = Json::object();
  for (const auto& [name, tensor] : map) {
    Json boxes = Json::array();
    for (const Box& box : tensor.boxes)
      boxes.push_back({{"file", box.file}, {"first_row", box.first_row}, {"rows", box.num_rows}});
    tensors[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"boxes", boxes}};
  }
  return tensors;
}

BoxMap read_boxes(const JsonNode& node) {
  BoxMap map;
  for (const auto& [name, tensor] : node.members()) map.emplace(name, read_tensor(tensor));
  require_whole(map, node.place());
  return map;
}

}  // namespace anabatic::train
