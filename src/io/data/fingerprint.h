// SPDX-License-Identifier: Apache-2.0
// What tells one content of a file from another: a cheap fingerprint, and a hash of all bytes.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::io {

struct FileFingerprint {
  std::filesystem::path path;  // as it was given; no part of the hash
  std::int64_t bytes = 0;
  std::string hash;  // 32 hexadecimal digits

  bool has_same_content(const FileFingerprint& other) const {
    return bytes == other.bytes && hash == other.hash;
  }
};

// The hash covers size, head, tail and 256 samples of 4 KiB between them, so that it costs about
// 1 MiB of reads whatever the size; files of at most 4 MiB are hashed whole. ResourceError naming
// a file that is not there or cannot be read.
FileFingerprint fingerprint(const std::filesystem::path& path);

// Fingerprints of the files that a user's list of data names, in order: both files of a pair.
std::vector<FileFingerprint> data_fingerprints(std::span<const std::filesystem::path> files);

// XXH3 (128 bits, 32 hexadecimal digits) over all bytes: of blocks of 4 MiB, then of their hashes.
// The same for any number of threads. ResourceError as above, or when the file changes its size
// meanwhile.
std::string content_hash(const std::filesystem::path& path, int threads);

// The hash of bytes in memory.
std::string content_hash(std::string_view bytes);

}  // namespace anabatic::io
