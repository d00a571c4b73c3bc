// SPDX-License-Identifier: Apache-2.0
// Reading safetensors: one file, or a folder with a sharded checkpoint as Hugging Face writes it.
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
#include <vector>

#include "io/file.h"
#include "tensor/dtype.h"

namespace anabatic::io {

struct TensorEntry {
  std::string name;
  std::string dtype_name;      // as in the file: "F32", "BF16", "F8_E4M3", ...
  std::optional<DType> dtype;  // empty for types that the format knows and the engine does not
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;  // row-major, little-endian; not always aligned to the element
  std::shared_ptr<const std::filesystem::path> file;  // one for all tensors of a file

  std::int64_t num_elements() const;
};

// The format's name of a dtype, such as "BF16".
std::string_view safetensors_name(DType dtype);

// The tensors of one file. Checked: header at most 100 MB and within the file, JSON without double
// names, known dtypes, sizes that match shapes without overflow, offsets that cover the data
// without gap or overlap. InvalidArgument lists every problem found.
std::vector<TensorEntry> parse_safetensors(std::span<const std::byte> bytes,
                                           const std::filesystem::path& file);

// Maps the files of a checkpoint and unmaps them on destruction; entries live as long as it does.
class SafetensorsDirectory {
 public:
  // `path`: a .safetensors file, or a folder with STEM.safetensors or else
  // STEM.safetensors.index.json and its shards. Throws InvalidArgument listing all problems:
  // missing or broken shards, tensors that the index names and the shard lacks, tensors in two
  // shards. Tensors in a listed shard that the index does not name are kept.
  static SafetensorsDirectory open(const std::filesystem::path& path,
                                   const std::string& stem = "model");

  // Sorted by name.
  std::vector<std::string> names() const;
  const TensorEntry* find(std::string_view name) const;  // null if absent
  const std::map<std::string, TensorEntry, std::less<>>& entries() const { return entries_; }
  // Releases the memory of the pages of these bytes of an entry; see io::release_pages.
  void release(std::span<const std::byte> data) const;

 private:
  void add_shard(const std::filesystem::path& path, std::vector<std::string>& problems);
  void open_index(const std::filesystem::path& index, std::vector<std::string>& problems);

  std::vector<MappedFile> files_;
  std::map<std::string, TensorEntry, std::less<>> entries_;
};

}  // namespace anabatic::io
