// SPDX-License-Identifier: Apache-2.0
// GGUF files byte by byte, so that tests can write what no writer would.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace anabatic::io {

template <class T>
std::string little_endian(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

inline std::string gguf_string(std::string_view text) {
  return little_endian<std::uint64_t>(text.size()) + std::string(text);
}

// The parts of a file; a test changes one and joins them.
struct GgufBytes {
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> dimensions;  // innermost first
    std::uint32_t type = 0;
    std::uint64_t offset = 0;
  };

  std::uint32_t version = 3;
  std::vector<std::string> entries;  // whole: key, type, value
  std::vector<Tensor> tensors;
  std::size_t alignment = 32;
  std::string data;

  template <class T>
  void add(std::string_view key, std::uint32_t type, T value) {
    entries.push_back(gguf_string(key) + little_endian(type) + little_endian(value));
  }
  void add_text(std::string_view key, std::string_view value) {
    entries.push_back(gguf_string(key) + little_endian<std::uint32_t>(8) + gguf_string(value));
  }
  // `elements`: as they are in the file.
  void add_array(std::string_view key, std::uint32_t type, std::uint64_t count,
                 std::string_view elements) {
    entries.push_back(gguf_string(key) + little_endian<std::uint32_t>(9) + little_endian(type) +
                      little_endian(count) + std::string(elements));
  }

  std::string join() const {
    std::string file = "GGUF" + little_endian(version) +
                       little_endian<std::uint64_t>(tensors.size()) +
                       little_endian<std::uint64_t>(entries.size());
    for (const std::string& entry : entries) file += entry;
    for (const Tensor& tensor : tensors) {
      file += gguf_string(tensor.name) +
              little_endian(static_cast<std::uint32_t>(tensor.dimensions.size()));
      for (const std::uint64_t size : tensor.dimensions) file += little_endian(size);
      file += little_endian(tensor.type) + little_endian(tensor.offset);
    }
    while (file.size() % alignment != 0) file += '\0';
    return file + data;
  }
};

// Metadata of several types and the tensors a (Q8_0, 2 x 64), b (F32, 3) and c (F16, a scalar).
inline GgufBytes small_gguf() {
  GgufBytes file;
  file.add_text("general.architecture", "llama");
  file.add<std::uint32_t>("llama.block_count", 4, 2);
  file.add<float>("llama.rope.freq_base", 6, 10000.0f);
  file.add<std::uint8_t>("tokenizer.ggml.add_bos_token", 7, 1);
  file.add_array("tokenizer.ggml.tokens", 8, 2, gguf_string("a") + gguf_string("bc"));
  file.add_array("tokenizer.ggml.token_type", 5, 2,
                 little_endian<std::int32_t>(1) + little_endian<std::int32_t>(-3));
  file.tensors = {{"a", {64, 2}, 8, 0}, {"b", {3}, 0, 160}, {"c", {}, 1, 192}};
  file.data = std::string(136, 'a') + std::string(24, '\0') + std::string(12, 'b') +
              std::string(20, '\0') + "cc";
  return file;
}

}  // namespace anabatic::io
