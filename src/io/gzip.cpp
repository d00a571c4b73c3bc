// SPDX-License-Identifier: Apache-2.0
#include "io/gzip.h"

#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/text.h"

namespace anabatic::io {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // of one call of zlib

[[noreturn]] void refuse_to_write(const std::filesystem::path& file) {
  throw ResourceError(fmt::format("[gzip] {}: cannot be written: {}", file.string(),
                                  errno != 0 ? std::strerror(errno) : "zlib failed"));
}

}  // namespace

GzipWriter::GzipWriter(const std::filesystem::path& file) : target_(replaceable_file(file)) {
  try {
    file_ = File::create(target_.string() + ".partial");
  } catch (const ResourceError& error) {
    throw ResourceError(
        fmt::format("[gzip] {}: cannot be written: {}", target_.string(), error.what()));
  }
  const int descriptor = ::dup(file_.descriptor());
  errno = 0;
  stream_ = descriptor < 0 ? nullptr : gzdopen(descriptor, "wb6");
  if (stream_ != nullptr) return;
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  std::error_code ignored;
  std::filesystem::remove(file_.path(), ignored);
  errno = error;
  refuse_to_write(target_);
}

GzipWriter::~GzipWriter() {
  if (stream_ != nullptr) gzclose(static_cast<gzFile>(stream_));
  std::error_code ignored;
  if (file_.is_open()) std::filesystem::remove(file_.path(), ignored);
}

void GzipWriter::write(std::string_view text) {
  ANABATIC_CHECK(stream_ != nullptr, "[gzip] {} is closed", target_.string());
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, kMostBytes);
    errno = 0;
    if (gzwrite(static_cast<gzFile>(stream_), piece.data(), static_cast<unsigned>(piece.size())) <=
        0)
      refuse_to_write(target_);
    text.remove_prefix(piece.size());
  }
}

void GzipWriter::close() {
  ANABATIC_CHECK(stream_ != nullptr, "[gzip] {} is closed", target_.string());
  errno = 0;
  const int status = gzclose(static_cast<gzFile>(stream_));
  stream_ = nullptr;
  if (status != Z_OK) refuse_to_write(target_);
  file_.sync();
  const std::filesystem::path partial = file_.path();
  rename_file(partial, target_);
  file_.close();
  sync_directory(target_.has_parent_path() ? target_.parent_path() : ".");
}

}  // namespace anabatic::io
