// SPDX-License-Identifier: Apache-2.0
// The box map of a checkpoint that several ranks wrote: which rows of each tensor of the training
// state are in which file. It is a member of training_state.json:
//
//   "tensors": {"first_moment.w": {"dtype": "F32", "shape": [8, 48, 16], "boxes": [
//     {"file": "training_state-00001-of-00002.safetensors", "first_row": 0, "rows": 192},
//     {"file": "training_state-00002-of-00002.safetensors", "first_row": 192, "rows": 192}]}}
//
// A row is one of all dimensions but the last, flattened. A box is a tensor of the same name in its
// file, of shape [rows, last dimension]; a box of all rows has the tensor's own shape. Every row is
// in one box.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/json_node.h"

namespace anabatic::train {

struct Box {
  std::int64_t first_row = 0, num_rows = 0;
  std::string file;
  bool operator==(const Box&) const = default;
};

struct BoxedTensor {
  std::string dtype;  // as safetensors names it: "F32"
  std::vector<std::int64_t> shape;
  std::vector<Box> boxes;  // ascending

  std::int64_t width() const { return shape.empty() ? 1 : shape.back(); }
  std::int64_t num_rows() const;
  std::vector<std::int64_t> shape_of(const Box& box) const;  // in its file
  bool operator==(const BoxedTensor&) const = default;
};

using BoxMap = std::map<std::string, BoxedTensor, std::less<>>;

// "training_state-00002-of-00004.safetensors", of the second of four ranks.
std::string states_file(std::int64_t rank, std::int64_t num_ranks);

std::vector<std::string> files_of(const BoxMap& map);  // sorted, each once

// InvalidArgument beginning with `place` lists each tensor and range of rows that no box has, that
// two have, or that the tensor does not have.
void require_whole(const BoxMap& map, std::string_view place);

Json to_json(const BoxMap& map);
// InvalidArgument where it is not written so, or not whole.
BoxMap read_boxes(const JsonNode& node);

}  // namespace anabatic::train
