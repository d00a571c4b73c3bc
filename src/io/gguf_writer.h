// SPDX-License-Identifier: Apache-2.0
// Writing GGUF version 3, streaming: no tensor is held here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "io/gguf.h"

namespace anabatic::io {

// Metadata to be written, in the order of the calls. InvalidArgument for a key that is there
// already, and for an integer that its type cannot hold.
class GgufKeys {
 public:
  void add_integer(std::string_view key, GgufType type, std::int64_t value);
  void add_float(std::string_view key, float value);
  void add_bool(std::string_view key, bool value);
  void add_text(std::string_view key, std::string_view value);
  void add_integers(std::string_view key, GgufType type, std::span<const std::int64_t> values);
  void add_floats(std::string_view key, std::span<const float> values);
  void add_texts(std::string_view key, std::span<const std::string_view> values);
  // As it is in another file.
  void add(std::string_view key, const GgufValue& value);

  bool has(std::string_view key) const { return keys_.find(key) != keys_.end(); }
  std::size_t count() const { return keys_.size(); }
  const std::string& bytes() const { return bytes_; }  // as in a file

 private:
  void begin(std::string_view key, GgufType type, const std::int64_t* count);

  std::set<std::string, std::less<>> keys_;
  std::string bytes_;
};

struct GgufTensorInfo {
  std::string name;
  const BlockType* type = nullptr;
  std::vector<std::int64_t> shape;  // outermost first
};

// Keys and tensors are declared up front, so that all offsets are known before the first byte of
// data. The file appears under its name in finish(), whole; before that its name ends in
// ".partial". Several threads may write, each a tensor of its own.
class GgufWriter {
 public:
  // Creates the file, or where a link of that name leads. `alignment`: a power of two; one other
  // than 32 adds the key general.alignment. InvalidArgument for double names and for shapes that
  // the format or the type cannot have.
  GgufWriter(const std::filesystem::path& path, GgufKeys keys, std::vector<GgufTensorInfo> tensors,
             std::int64_t alignment = 32);
  ~GgufWriter();  // removes what finish() has not completed
  GgufWriter(GgufWriter&&) = default;
  GgufWriter& operator=(GgufWriter&&) = delete;

  std::int64_t num_bytes() const { return file_bytes_; }

  // Appends bytes of blocks to a tensor: whole or in chunks, tensors in any order.
  void write(std::string_view name, std::span<const std::byte> bytes);

  // Checks that every tensor is complete (the error lists those that are not), fsyncs and renames.
  void finish();

 private:
  struct Tensor {
    std::int64_t offset = 0;  // in the file
    std::int64_t size_bytes = 0;
    std::int64_t written_bytes = 0;
  };

  GgufWriter() = default;

  std::filesystem::path path_;
  File file_;  // under its partial name
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::int64_t file_bytes_ = 0;
};

}  // namespace anabatic::io
