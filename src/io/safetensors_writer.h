// SPDX-License-Identifier: Apache-2.0
// Writing safetensors as Hugging Face does, streaming: no tensor is held here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/checksums.h"
#include "io/file.h"
#include "tensor/dtype.h"

namespace anabatic::io {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
};

struct SafetensorsWriterOptions {
  std::int64_t max_shard_bytes = 5'000'000'000;  // a larger tensor gets a shard of its own
  std::string stem = "model";
};

// All tensors are declared up front, so that names, shards and offsets are known before the first
// byte. Tensors fill shards in the declared order; one shard is STEM.safetensors, several are
// STEM-00001-of-0000N.safetensors with STEM.safetensors.index.json. Within a shard wider elements
// come first, so every tensor is aligned to its element. Files appear under their names in
// finish(), whole; before that they end in ".partial". Several threads may write, each a tensor of
// its own.
class SafetensorsWriter {
 public:
  // Creates the files. InvalidArgument for double names, names the format reserves, negative or
  // overflowing shapes. ResourceError if a file cannot get its name.
  SafetensorsWriter(const std::filesystem::path& directory, std::vector<TensorInfo> tensors,
                    const SafetensorsWriterOptions& options = {});
  // One file under exactly this path, or where it links to.
  static SafetensorsWriter single_file(const std::filesystem::path& path,
                                       std::vector<TensorInfo> tensors);

  ~SafetensorsWriter();  // removes what finish() has not completed
  SafetensorsWriter(SafetensorsWriter&&) = default;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;

  // Appends row-major little-endian bytes to a tensor: whole or in chunks, tensors in any order.
  void write(std::string_view name, std::span<const std::byte> bytes);

  // Checks that every tensor is complete (error lists those that are not), fsyncs, renames, writes
  // the index. Returns the checksums of the files.
  ChecksumManifest finish();

 private:
  struct Tensor {
    std::size_t shard = 0;
    std::int64_t offset = 0;  // in the file
    std::int64_t size_bytes = 0;
    std::int64_t written_bytes = 0;
    std::optional<Checksum> sum{};  // while it is written
    std::uint64_t checksum = 0;     // when it is complete
  };

  SafetensorsWriter() = default;
  void declare(const std::vector<TensorInfo>& tensors, std::int64_t max_shard_bytes);
  void create_shard(std::size_t shard, const std::vector<TensorInfo>& tensors);

  std::filesystem::path directory_;
  std::string index_name_;  // empty with one shard
  std::vector<std::string> shard_names_;
  std::vector<File> files_;  // under their partial names
  std::vector<FileChecksums> checksums_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::int64_t total_bytes_ = 0;
  std::int64_t num_elements_ = 0;
  std::size_t num_shards_ = 0;
};

}  // namespace anabatic::io
