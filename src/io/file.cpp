// SPDX-License-Identifier: Apache-2.0
#include "io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/rounding.h"

namespace anabatic::io {
namespace {

[[noreturn]] void fail(const char* action, const std::filesystem::path& path) {
  const int code = errno;
  throw ResourceError(
      fmt::format("[file] cannot {} {}: {}", action, path.string(), std::strerror(code)));
}

}  // namespace

File::File(const std::filesystem::path& path, int flags) : path_(path) {
  descriptor_ = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail("open", path);
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || S_ISDIR(status.st_mode)) {
    ::close(std::exchange(descriptor_, -1));
    throw ResourceError(fmt::format("[file] expected a file, got a folder: {}", path.string()));
  }
}

File File::open(const std::filesystem::path& path) { return File(path, O_RDONLY); }
File File::create(const std::filesystem::path& path) {
  return File(path, O_RDWR | O_CREAT | O_TRUNC);
}
File File::append(const std::filesystem::path& path) {
  return File(path, O_RDWR | O_CREAT | O_APPEND);
}
File File::create_exclusive(const std::filesystem::path& path) {
  return File(path, O_RDWR | O_CREAT | O_EXCL);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::int64_t File::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail("stat", path_);
  return status.st_size;
}

std::size_t File::read_some_at(std::int64_t offset, std::span<std::byte> bytes) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::pread(descriptor_, bytes.data() + done, bytes.size() - done,
                                  offset + static_cast<std::int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("read", path_);
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

void File::read_at(std::int64_t offset, std::span<std::byte> bytes) const {
  const std::size_t done = read_some_at(offset, bytes);
  if (done != bytes.size()) {
    throw ResourceError(fmt::format("[file] {} ends early: expected {} bytes at {}, got {}",
                                    path_.string(), bytes.size(), offset, done));
  }
}

void File::write_at(std::int64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write", path_);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
}

void File::write(std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write", path_);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void File::resize(std::int64_t size_bytes) const {
  if (::ftruncate(descriptor_, size_bytes) != 0) fail("resize", path_);
}

void File::sync() const {
  if (::fsync(descriptor_) != 0) fail("sync", path_);
}

void File::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (descriptor >= 0 && ::close(descriptor) != 0) fail("close", path_);
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const File file = File::open(path);
  const auto size = static_cast<std::size_t>(file.size());
  if (size == 0) return;
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (address == MAP_FAILED) fail("map", path);
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void release_pages(std::span<const std::byte> mapped, std::span<const std::byte> whole) {
  // Around each first read Linux maps an aligned window of 64 KiB, or as much as lies in one large
  // folio of its cache: at most a huge page.
  constexpr std::uintptr_t kWindowBytes = std::uintptr_t{2} << 20;
  if (mapped.empty()) return;
  const auto address = [](const std::byte* byte) { return reinterpret_cast<std::uintptr_t>(byte); };
  const std::uintptr_t begin =
      std::max(address(mapped.data()) / kWindowBytes * kWindowBytes, address(whole.data()));
  const std::uintptr_t end =
      std::min(round_up(address(mapped.data() + mapped.size()), kWindowBytes),
               address(whole.data() + whole.size()));
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);  // a hint: may fail
}

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail("rename a file to", to);
}

void sync_directory(const std::filesystem::path& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail("open", directory);
  const int result = ::fsync(descriptor);
  ::close(descriptor);
  if (result != 0) fail("sync", directory);
}

}  // namespace anabatic::io
