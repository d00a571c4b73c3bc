// SPDX-License-Identifier: Apache-2.0
// The parameters of a GGUF file, read where they lie: no state is held in memory.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf.h"
#include "model/weights.h"

namespace anabatic::model {

class GgufSource {
 public:
  // InvalidArgument lists every tensor that is missing, surplus, or of another shape, and types
  // that are not read.
  GgufSource(const ModelConfig& config, const std::filesystem::path& file);

  // Its dtypes are those that hold the values: f32 of quantised tensors.
  const WeightMap& map() const { return map_; }
  const io::GgufFiles& files() const { return files_; }

  // Elements [first, first + values.size()) of a parameter, row-major, or of a tensor.
  void read(std::string_view state, std::int64_t first, std::span<float> values) const;
  void read_tensor(const io::GgufTensor& tensor, std::int64_t first, std::span<float> values) const;

 private:
  // Elements [offset, offset + count) of a state are those from `at` on of the tensor.
  struct Part {
    std::int64_t offset = 0, count = 0, at = 0;
    const io::GgufTensor* tensor = nullptr;
  };

  void match(const std::filesystem::path& file);
  void add_parts(const FileTensor& tensor);

  io::GgufFiles files_;
  WeightMap map_;
  std::map<std::string, std::vector<Part>, std::less<>> parts_;  // of each state, by offset
};

}  // namespace anabatic::model
