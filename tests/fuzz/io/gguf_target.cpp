// SPDX-License-Identifier: Apache-2.0
// The tensors of a GGUF that is read lie in the file one after the other, aligned, and have the
// bytes of their shapes. Metadata is read by its type, and the first block of a tensor has values.
#include <algorithm>

#include "fuzz/fuzz_target.h"
#include "io/gguf.h"

using namespace anabatic;

namespace {

void check_value(const io::GgufMetadata& metadata, std::string_view key,
                 const io::GgufValue& value) {
  if (value.type == io::GgufType::kString) {
    const std::size_t count = value.is_array ? metadata.texts(key)->size() : 1;
    fuzz::require(count == static_cast<std::size_t>(value.count), "as many strings as counted");
    if (!value.is_array) fuzz::require(metadata.text(key).has_value(), "a string");
  } else if (value.type == io::GgufType::kBool) {
    if (!value.is_array) fuzz::require(metadata.boolean(key).has_value(), "a bool");
  } else if (value.is_array) {
    fuzz::require(metadata.numbers(key)->size() == static_cast<std::size_t>(value.count),
                  "as many numbers as counted");
  } else {
    fuzz::require(metadata.number(key).has_value(), "a number");
  }
}

void check_tensor(const io::GgufTensor& tensor) {
  const io::BlockType& type = *tensor.type;
  fuzz::require(tensor.num_elements() / type.elements * type.bytes ==
                    static_cast<std::int64_t>(tensor.data.size()),
                "bytes of the shape and type");
  if (type.dequantise == nullptr || tensor.data.empty()) return;
  float values[256];
  io::dequantise(type, tensor.data.first(static_cast<std::size_t>(type.bytes)),
                 std::span(values).first(static_cast<std::size_t>(type.elements)));
}

void check(io::GgufContents& contents, std::string_view file) {
  for (const auto& [key, value] : contents.metadata.entries())
    check_value(contents.metadata, key, value);
  std::ranges::sort(contents.tensors, {}, [](const io::GgufTensor& tensor) {
    return std::pair(tensor.offset, tensor.data.size());
  });
  std::int64_t end = 0;
  for (const io::GgufTensor& tensor : contents.tensors) {
    check_tensor(tensor);
    fuzz::require(tensor.offset >= end && tensor.offset % contents.alignment == 0,
                  "aligned tensors without overlap");
    end = tensor.offset + static_cast<std::int64_t>(tensor.data.size());
    fuzz::require(end <= static_cast<std::int64_t>(file.size()), "tensors in the file");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view file = fuzz::view(data, size);
  return fuzz::read_or_refuse(
      file, [&] { return io::parse_gguf(std::as_bytes(std::span(file)), "a.gguf"); },
      [&](io::GgufContents& contents) { check(contents, file); });
}
