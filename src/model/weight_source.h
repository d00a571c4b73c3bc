// SPDX-License-Identifier: Apache-2.0
// The parameters of a model, read from its files where they lie: no state is held in memory.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "model/stored_tensor.h"
#include "model/weights.h"

namespace anabatic::model {

class WeightSource {
 public:
  // Errors as those of read_weight_map, and of tensors that ought to be equal.
  WeightSource(const ModelConfig& config, const std::filesystem::path& directory);

  const WeightMap& map() const { return map_; }
  const io::SafetensorsDirectory& files() const { return files_; }
  const StoredTensor& stored(std::string_view tensor) const;  // of a tensor of the map
  bool is_quantised() const;                                  // whether any tensor is

  // Elements [first, first + values.size()) of a parameter, row-major. Memory of pages that were
  // read is released. Several threads may read.
  void read(std::string_view state, std::int64_t first, std::span<float> values) const;

 private:
  // Elements [offset, offset + count) of a state are those from `at` on of the tensor, before any
  // transposition.
  struct Part {
    std::int64_t offset = 0, count = 0, at = 0;
    const StoredTensor* tensor = nullptr;
    bool is_transposed = false;

    bool continues_at(std::int64_t in_state, std::int64_t in_tensor,
                      const StoredTensor* other) const {
      return offset + count == in_state && at + count == in_tensor && tensor == other;
    }
  };

  // A matrix that files have transposed, as states have it. Rows are read a few at a time, and
  // those of two states may take turns in it.
  struct Turned {
    const StoredTensor* tensor = nullptr;
    std::int64_t begin = 0;  // its first element in the tensor
    std::vector<float> values;
  };

  // Elements from `first` on of a part.
  void read_part(const Part& part, std::int64_t first, std::span<float> values) const;
  std::shared_ptr<const Turned> turned(const StoredTensor& tensor, std::int64_t begin) const;

  io::SafetensorsDirectory files_;
  WeightMap map_;
  std::map<std::string, StoredTensor, std::less<>> stored_;      // by name
  std::map<std::string, std::vector<Part>, std::less<>> parts_;  // of each state, by offset
  // The last ones, newest last, one for each thread. A pointer, so that a source can be moved.
  struct Lately {
    std::mutex mutex;
    std::vector<std::shared_ptr<const Turned>> matrices;
  };
  std::unique_ptr<Lately> lately_ = std::make_unique<Lately>();
};

}  // namespace anabatic::model
