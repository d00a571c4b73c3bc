// SPDX-License-Identifier: Apache-2.0
// PREFIX.reference next to PREFIX.bin/.idx: the log-probability of each token by a reference model,
// 0 of those that were not asked for. Layout, little-endian: "ANBREFR1", u64 tokens, 32 characters
// of a key, u32 crc32c of the rest, u32 0, then an f32 for each token.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "io/data/indexed_file.h"
#include "io/file.h"

namespace anabatic::io {

// A file mapped for reading. Const members are thread-safe.
class ReferenceFile {
 public:
  // Nothing where there is none of this key and number of tokens, or where it is damaged.
  static std::optional<ReferenceFile> find(const std::filesystem::path& path,
                                           const std::string& key, std::int64_t num_tokens);
  static std::filesystem::path path_of(const IndexedFile& tokens);  // PREFIX.reference

  std::int64_t num_tokens() const { return std::ssize(values_); }
  // Reads tokens [begin, begin + values.size()).
  void read(std::int64_t begin, std::span<float> values) const;

 private:
  ReferenceFile() = default;
  MappedFile file_;
  std::span<const float> values_;
};

// Appears under its name in finish().
class ReferenceFileWriter {
 public:
  // `key` has 32 characters, as io::content_hash gives.
  ReferenceFileWriter(const std::filesystem::path& path, std::string key, std::int64_t num_tokens);
  ~ReferenceFileWriter();  // removes what finish() has not completed
  ReferenceFileWriter(const ReferenceFileWriter&) = delete;
  ReferenceFileWriter& operator=(const ReferenceFileWriter&) = delete;

  // Takes the values of tokens from `begin` on.
  void write(std::int64_t begin, std::span<const float> values) const;
  void finish();

 private:
  std::filesystem::path partial() const;

  std::filesystem::path path_;
  std::string key_;
  std::int64_t num_tokens_;
  File file_;
  bool finished_ = false;
};

}  // namespace anabatic::io
