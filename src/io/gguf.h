// SPDX-License-Identifier: Apache-2.0
// Reading GGUF, the format of llama.cpp: typed metadata, and tensors in blocks. One file, or the
// files that one was split into.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/block_types.h"
#include "io/file.h"

namespace anabatic::io {

inline constexpr std::uint32_t kMaxGgufDimensions = 4;

enum class GgufType : std::uint32_t {
  kUInt8,
  kInt8,
  kUInt16,
  kInt16,
  kUInt32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUInt64,
  kInt64,
  kFloat64
};
std::string_view to_string(GgufType type);  // "u8", "string", ...
// Bytes of a number or bool; 0 for strings and arrays.
std::int64_t size_bytes(GgufType type);

// A value of the metadata, as it is in the file.
struct GgufValue {
  GgufType type = GgufType::kUInt8;  // of each element where it is an array
  bool is_array = false;
  std::int64_t count = 1;            // of elements
  std::span<const std::byte> bytes;  // the elements, little-endian; a string has its length before
};

// Metadata by key. A getter gives nothing for a key that is absent, and InvalidArgument for a value
// of another type.
class GgufMetadata {
 public:
  using Entry = std::pair<std::string_view, GgufValue>;

  GgufMetadata() = default;
  GgufMetadata(std::shared_ptr<const std::filesystem::path> file, std::vector<Entry> entries);

  const std::vector<Entry>& entries() const { return entries_; }  // in the order of the file
  const std::filesystem::path& file() const { return *file_; }
  const GgufValue* find(std::string_view key) const;

  std::optional<std::int64_t> integer(std::string_view key) const;  // of any integer type
  std::optional<double> number(std::string_view key) const;         // of any number
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> text(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;
  std::optional<std::vector<double>> numbers(std::string_view key) const;
  std::optional<std::vector<std::string_view>> texts(std::string_view key) const;

 private:
  const GgufValue* find(std::string_view key, bool is_array, bool (*accepts)(GgufType),
                        std::string_view expected) const;

  std::shared_ptr<const std::filesystem::path> file_ =
      std::make_shared<const std::filesystem::path>();
  std::vector<Entry> entries_;
  std::map<std::string_view, std::size_t> places_;
};

struct GgufTensor {
  std::string name;
  const BlockType* type = nullptr;
  std::vector<std::int64_t> shape;  // outermost first: the other way round than in the file
  std::int64_t offset = 0;          // of the data in the file
  std::span<const std::byte> data;  // blocks of rows, row-major
  std::shared_ptr<const std::filesystem::path> file;  // one for all tensors of a file

  std::int64_t num_elements() const;
};

struct GgufContents {
  std::uint32_t version = 3;
  std::int64_t alignment = 32;  // of tensors in the file
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  // in the order of the file
};

// The contents of one file; views of `bytes`. Checked: version 2 or 3, little-endian; every count
// and length against the bytes that are left; types; keys and names that appear once; shapes that
// do not overflow, of whole blocks a row; tensors that are aligned and lie next to each other,
// within the file and up to its end. InvalidArgument names the file and the key or tensor.
GgufContents parse_gguf(std::span<const std::byte> bytes, const std::filesystem::path& file);

// Whether a file begins as a GGUF does.
bool is_gguf(const std::filesystem::path& path);

// Maps the files of a model and unmaps them on destruction; what it gives lives as long as it does.
class GgufFiles {
 public:
  // `path`: a file, or any of the files NAME-00001-of-0000N.gguf of a split one, which are all
  // read. InvalidArgument lists every part that is missing or broken, and tensors in two parts.
  static GgufFiles open(const std::filesystem::path& path);

  const GgufMetadata& metadata() const { return metadata_; }  // of the first file
  const GgufTensor* find(std::string_view name) const;        // null if absent
  const std::map<std::string, GgufTensor, std::less<>>& tensors() const { return tensors_; }
  std::vector<std::filesystem::path> paths() const;
  std::int64_t num_bytes() const;  // of all files
  // Releases the memory of the pages of these bytes of a tensor; see io::release_pages.
  void release(std::span<const std::byte> data) const;

 private:
  void add(const std::filesystem::path& path, std::int64_t part, std::int64_t num_parts,
           std::vector<std::string>& problems);

  std::vector<MappedFile> files_;
  GgufMetadata metadata_;
  std::map<std::string, GgufTensor, std::less<>> tensors_;
};

}  // namespace anabatic::io
