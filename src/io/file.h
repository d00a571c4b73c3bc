// SPDX-License-Identifier: Apache-2.0
// Owned file descriptors and read-only memory maps. All throw ResourceError naming the path.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace anabatic::io {

// An open file; closed on destruction. Reads and writes at offsets are thread-safe.
class File {
 public:
  static File open(const std::filesystem::path& path);              // for reading
  static File create(const std::filesystem::path& path);            // empty, for writing
  static File append(const std::filesystem::path& path);            // for writing at the end
  static File create_exclusive(const std::filesystem::path& path);  // fails if it exists

  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  std::int64_t size() const;
  // Reads exactly bytes.size() bytes; a shorter file is an error.
  void read_at(std::int64_t offset, std::span<std::byte> bytes) const;
  // Reads up to bytes.size() bytes; fewer only at the end of the file.
  std::size_t read_some_at(std::int64_t offset, std::span<std::byte> bytes) const;
  void write_at(std::int64_t offset, std::span<const std::byte> bytes) const;
  // Writes at the current position (at the end for `append`).
  void write(std::span<const std::byte> bytes) const;
  void resize(std::int64_t size_bytes) const;
  void sync() const;
  void close();  // the destructor ignores an error, this does not
  bool is_open() const { return descriptor_ >= 0; }
  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }

 private:
  File(const std::filesystem::path& path, int flags);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

// A whole file mapped for reading; unmapped on destruction. Spans into it live as long as it does.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

// Gives back the memory of the pages that these bytes of a MappedFile's `whole` lie in, and of the
// pages around them that the system maps along with a page that is read: they count as resident
// from then on. A later read fetches them again.
void release_pages(std::span<const std::byte> mapped, std::span<const std::byte> whole);
// Fewer bytes are not worth the call.
inline constexpr std::size_t kLeastReleased = std::size_t{1} << 16;

// Replaces `to`, which may be there.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

// Makes renames and new names in this folder durable.
void sync_directory(const std::filesystem::path& directory);

}  // namespace anabatic::io
