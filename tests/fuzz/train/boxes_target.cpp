// SPDX-License-Identifier: Apache-2.0
// A box map that is read has each row of each tensor once, and prints as it was read.
#include "base/error.h"
#include "fuzz/fuzz_target.h"
#include "train/checkpoint/boxes.h"

using namespace anabatic;

namespace {

train::BoxMap read(std::string_view text) {
  const Json json = parse_json_object(text, "[checkpoint] training_state.json");
  return train::read_boxes(JsonNode(json, "[checkpoint] training_state.json"));
}

void check(const train::BoxMap& map) {
  for (const auto& [name, tensor] : map) {
    std::int64_t next = 0;
    for (const train::Box& box : tensor.boxes) {
      fuzz::require(box.first_row == next && box.num_rows > 0, "each row once, in its order");
      fuzz::require(
          box.file.starts_with("training_state-") && box.file.find('/') == std::string::npos,
          "a file of the checkpoint");
      next += box.num_rows;
    }
    fuzz::require(next == tensor.num_rows(), "all rows");
  }
  const std::string printed = dump_json(train::to_json(map));
  fuzz::require(read(printed) == map, "the text of a map is stable");
  (void)train::files_of(map);
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json = fuzz::view(data, size);
  return fuzz::read_or_refuse(
      json, [&] { return read(json); }, check);
}
