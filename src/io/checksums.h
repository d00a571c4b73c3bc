// SPDX-License-Identifier: Apache-2.0
// Checksums of a directory's files, stored in it as checksums.json. A safetensors file has one for
// each tensor, so that a damaged one can be named.
#pragma once
#include <algorithm>
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

namespace anabatic::io {

// XXH3 (64 bits) of bytes that are added in parts.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// XXH3 of mapped bytes of `files`, whose pages are released on the way.
template <class Files>
std::uint64_t checksum_of_mapped(const Files& files, std::span<const std::byte> data) {
  constexpr std::size_t kBlock = std::size_t{1} << 22;
  Checksum sum;
  while (!data.empty()) {
    const auto block = data.first(std::min(kBlock, data.size()));
    sum.add(block);
    files.release(block);
    data = data.subspan(block.size());
  }
  return sum.value();
}

struct FileChecksums {
  std::int64_t bytes = 0;     // of the file
  std::uint64_t content = 0;  // of a safetensors file: its length and header; else all of it
  std::map<std::string, std::uint64_t, std::less<>> tensors;  // of a safetensors file

  bool operator==(const FileChecksums&) const = default;
};
using ChecksumManifest = std::map<std::string, FileChecksums, std::less<>>;  // by file name

inline constexpr const char* kChecksumsFile = "checksums.json";

// Checksums of a file of another format than safetensors. ResourceError if it cannot be read.
FileChecksums checksums_of(const std::filesystem::path& file);

// The text of checksums.json. InvalidArgument beginning with `place` if it is broken.
std::string to_text(const ChecksumManifest& manifest);
ChecksumManifest parse_checksums(std::string_view text, std::string_view place);

void write_checksums(const std::filesystem::path& directory, const ChecksumManifest& manifest);
// Nothing if the directory has no checksums.json. InvalidArgument if that file is broken.
std::optional<ChecksumManifest> read_checksums(const std::filesystem::path& directory);

// The differences of a file from what was written, one line each; empty if there is none. Reads the
// whole file and keeps none of it in memory.
std::vector<std::string> damage_of(const std::filesystem::path& file, const FileChecksums& written,
                                   int threads);

// "tensor NAME: expected checksum A, found B".
std::string checksum_mismatch(std::string_view tensor, std::uint64_t expected, std::uint64_t found);

// Length and header of a safetensors file as a checksum of its first bytes.
FileChecksums header_checksum(const std::filesystem::path& file);

}  // namespace anabatic::io
