// SPDX-License-Identifier: Apache-2.0
// Checksums of a directory's files, kept in it as checksums.json: of safetensors files one a
// tensor, so that what is damaged can be named.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace anabatic::io {

// XXH3 (64 bits) of bytes that come in parts.
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

struct FileChecksums {
  std::int64_t bytes = 0;     // of the file
  std::uint64_t content = 0;  // of a safetensors file: its length and header; else all of it
  std::map<std::string, std::uint64_t, std::less<>> tensors;  // of a safetensors file

  bool operator==(const FileChecksums&) const = default;
};
using ChecksumManifest = std::map<std::string, FileChecksums, std::less<>>;  // by file name

inline constexpr const char* kChecksumsFile = "checksums.json";

// Of a file that is no safetensors file. ResourceError when it cannot be read.
FileChecksums checksums_of(const std::filesystem::path& file);

void write_checksums(const std::filesystem::path& directory, const ChecksumManifest& manifest);
// None where the directory has no checksums.json. InvalidArgument when it is broken.
std::optional<ChecksumManifest> read_checksums(const std::filesystem::path& directory);

// What of a file is not as it was written, a line each; empty: nothing. Reads the whole file and
// keeps none of it in memory.
std::vector<std::string> damage_of(const std::filesystem::path& file, const FileChecksums& written,
                                   int threads);

// "tensor NAME: expected checksum A, found B".
std::string checksum_mismatch(std::string_view tensor, std::uint64_t expected, std::uint64_t found);

// Length and header of a safetensors file as a checksum of its first bytes.
FileChecksums header_checksum(const std::filesystem::path& file);

}  // namespace anabatic::io
