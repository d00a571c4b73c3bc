// SPDX-License-Identifier: Apache-2.0
// The bytes of a file from begin to end, decompressed if it is gzip.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "io/file.h"

namespace anabatic::io {

// Whether these first bytes of a file begin a gzip member.
bool has_gzip_magic(std::span<const std::byte> head);

// Uses bounded memory for a file of any size. A gzip file may hold several members, with zeros as
// padding after the last. InvalidArgument naming file and offset if compressed data end early or
// are damaged: sizes and checksums of members are compared.
class ByteSource {
 public:
  explicit ByteSource(const std::filesystem::path& path);
  ByteSource(ByteSource&&) noexcept;
  ByteSource& operator=(ByteSource&&) noexcept;
  ~ByteSource();

  // Fills `bytes` unless the end comes first; returns how many were filled.
  std::size_t read(std::span<std::byte> bytes);
  bool is_gzip() const { return inflater_ != nullptr; }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  struct Inflater;

  File file_;
  std::int64_t offset_ = 0;
  std::unique_ptr<Inflater> inflater_;
};

// Appends the next part, of kPartBytes unless the end comes first; returns its bytes.
inline constexpr std::size_t kPartBytes = std::size_t{1} << 20;
std::size_t append_part(ByteSource& source, std::string& buffer);

}  // namespace anabatic::io
