// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/state_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "io/safetensors_writer.h"
#include "train/checkpoint/checkpoint_progress.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

std::string to_string(std::string_view dtype, const std::vector<std::int64_t>& shape) {
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ","));
}

BoxedTensor boxed(const SavedState& state) {
  return {std::string(io::safetensors_name(state.type.dtype)), state.type.shape, {}};
}

std::string problems_of_fit(const BoxMap& map, const std::vector<SavedState>& states) {
  std::string problems;
  std::map<std::string_view, const BoxedTensor*> surplus;
  for (const auto& [name, tensor] : map) surplus.emplace(name, &tensor);
  for (const SavedState& state : states) {
    const BoxedTensor expected = boxed(state);
    const auto found = map.find(text(state.name));
    surplus.erase(text(state.name));
    if (found == map.end())
      problems += fmt::format("\n  {}: missing", text(state.name));
    else if (found->second.dtype != expected.dtype || found->second.shape != expected.shape)
      problems += fmt::format("\n  {}: expected {}, found {}", text(state.name),
                              to_string(expected.dtype, expected.shape),
                              to_string(found->second.dtype, found->second.shape));
  }
  for (const auto& [name, tensor] : surplus) problems += fmt::format("\n  {}: surplus", name);
  return problems;
}

struct WrittenPart {
  const SavedState* state;
  spec::Rows rows;  // of it
  std::vector<std::int64_t> shape;
};

io::ChecksumManifest write_parts(const fs::path& file, runtime::StateStore& store,
                                 const std::vector<WrittenPart>& parts) {
  std::vector<io::TensorInfo> infos;
  for (const WrittenPart& part : parts)
    infos.push_back({std::string(text(part.state->name)), part.state->type.dtype, part.shape});
  io::SafetensorsWriter writer = io::SafetensorsWriter::single_file(file, infos);
  for (const WrittenPart& part : parts)
    for_state_bytes(store, *part.state, part.rows, [&](std::span<const std::byte> block) {
      writer.write(text(part.state->name), block);
    });
  return writer.finish();
}

// Tensors of one file as boxes of all their rows.
BoxMap map_of_whole(const io::SafetensorsDirectory& file) {
  BoxMap map;
  for (const auto& [name, entry] : file.entries()) {
    BoxedTensor& tensor = map[name];
    tensor = {entry.dtype_name, entry.shape, {}};
    tensor.boxes.push_back({0, tensor.num_rows(), kStatesFile});
  }
  return map;
}

}  // namespace

BoxMap share_out(const std::vector<SavedState>& states, std::int64_t num_ranks,
                 std::int64_t bytes_of_first) {
  struct Part {
    BoxedTensor* tensor;
    spec::Rows rows;
    std::int64_t bytes;
    std::vector<std::int32_t> ranks;  // that hold it
  };
  BoxMap map;
  std::vector<Part> parts;
  std::vector<std::int32_t> all(static_cast<std::size_t>(num_ranks));
  std::iota(all.begin(), all.end(), 0);
  for (const SavedState& state : states) {
    BoxedTensor& tensor = map[std::string(text(state.name))] = boxed(state);
    const std::int64_t row_bytes = tensor.width() * size_bytes(state.type.dtype);
    for (const HeldPart& part : state.parts)
      parts.push_back({&tensor, part.rows, part.rows.count * row_bytes, part.ranks});
    if (state.parts.empty())
      parts.push_back(
          {&tensor, {0, tensor.num_rows(), tensor.num_rows()}, tensor.num_rows() * row_bytes, all});
  }
  // Those that only one rank can write come first, as they leave no choice.
  std::ranges::stable_sort(parts, [](const Part& a, const Part& b) {
    return std::pair(a.ranks.size() > 1, -a.bytes) < std::pair(b.ranks.size() > 1, -b.bytes);
  });
  std::vector<std::int64_t> bytes(all.size(), 0);
  bytes[0] = bytes_of_first;
  for (const Part& part : parts) {
    const std::int32_t writer = *std::ranges::min_element(
        part.ranks, {}, [&](std::int32_t rank) { return bytes[static_cast<std::size_t>(rank)]; });
    bytes[static_cast<std::size_t>(writer)] += part.bytes;
    part.tensor->boxes.push_back(
        {part.rows.first, part.rows.count, states_file(writer, num_ranks)});
  }
  for (auto& [name, tensor] : map) std::ranges::sort(tensor.boxes, {}, &Box::first_row);
  return map;
}

io::ChecksumManifest write_states(const fs::path& checkpoint, runtime::StateStore& store,
                                  const std::vector<SavedState>& states) {
  std::vector<WrittenPart> parts;
  for (const SavedState& state : states) parts.push_back({&state, {}, state.type.shape});
  return write_parts(checkpoint / kStatesFile, store, parts);
}

io::ChecksumManifest write_boxes(const fs::path& checkpoint, runtime::StateStore& store,
                                 const std::vector<SavedState>& states, const BoxMap& map,
                                 const std::string& file) {
  std::vector<WrittenPart> parts;
  for (const SavedState& state : states) {
    const auto found = map.find(text(state.name));
    ANABATIC_CHECK(found != map.end(), "[checkpoint] no boxes of {}", text(state.name));
    const BoxedTensor& tensor = found->second;
    for (const Box& box : tensor.boxes)
      if (box.file == file)
        parts.push_back(
            {&state, {box.first_row, box.num_rows, tensor.num_rows()}, tensor.shape_of(box)});
  }
  return write_parts(checkpoint / file, store, parts);
}

StateFiles::StateFiles(const fs::path& checkpoint, BoxMap map)
    : checkpoint_(checkpoint), map_(std::move(map)) {
  if (map_.empty()) {
    const io::SafetensorsDirectory& file =
        files_.emplace(kStatesFile, io::SafetensorsDirectory::open(checkpoint / kStatesFile))
            .first->second;
    map_ = map_of_whole(file);
    return;
  }
  for (const std::string& file : files_of(map_))
    files_.emplace(file, io::SafetensorsDirectory::open(checkpoint / file));
  std::string problems;
  std::map<std::string_view, std::size_t> num_boxes;  // by file
  for (const auto& [name, tensor] : map_)
    for (const Box& box : tensor.boxes) {
      ++num_boxes[box.file];
      const std::string expected = to_string(tensor.dtype, tensor.shape_of(box));
      const io::TensorEntry* entry = files_.find(box.file)->second.find(name);
      const std::string found =
          entry == nullptr ? "nothing" : to_string(entry->dtype_name, entry->shape);
      if (found != expected)
        problems += fmt::format("\n  {}: {}: expected {} from row {} on, found {}", box.file, name,
                                expected, box.first_row, found);
    }
  for (const auto& [name, file] : files_)
    if (file.entries().size() != num_boxes[name])
      problems += fmt::format("\n  {}: expected {} tensors, found {}", name, num_boxes[name],
                              file.entries().size());
  ANABATIC_REQUIRE(problems.empty(), "[checkpoint] the files of {} do not fit {}:{}",
                   checkpoint.string(), kProgressFile, problems);
}

void StateFiles::read(std::string_view tensor, std::int64_t first,
                      std::span<std::byte> bytes) const {
  const auto& [name, boxed] = *map_.find(tensor);
  const std::int64_t width = boxed.width();
  auto box = std::ranges::upper_bound(boxed.boxes, first, {},
                                      [&](const Box& other) { return other.first_row * width; });
  for (--box; !bytes.empty(); ++box) {
    ANABATIC_CHECK(box != boxed.boxes.end(), "[checkpoint] {} ends before element {}", name, first);
    const io::SafetensorsDirectory& file = files_.find(box->file)->second;
    const io::TensorEntry& entry = *file.find(name);
    const std::int64_t size = size_bytes(*entry.dtype), at = first - box->first_row * width;
    const auto from = entry.data.subspan(static_cast<std::size_t>(at * size));
    const auto part = from.first(std::min(from.size(), bytes.size()));
    std::ranges::copy(part, bytes.begin());
    file.release(part);
    bytes = bytes.subspan(part.size());
    first += std::ssize(part) / size;
  }
}

void read_states(const StateFiles& files, runtime::StateStore& store,
                 const std::vector<SavedState>& states) {
  const std::string problems = problems_of_fit(files.tensors(), states);
  ANABATIC_REQUIRE(problems.empty(),
                   "[checkpoint] the training state of {} does not fit this model:{}",
                   files.checkpoint().string(), problems);
  for (const SavedState& state : states)
    fill_state(store, state, [&](std::int64_t first, std::span<std::byte> block) {
      files.read(text(state.name), first, block);
    });
}

}  // namespace anabatic::train
