// SPDX-License-Identifier: Apache-2.0
#include "io/gzip.h"

#include <zlib.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace anabatic::io {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // of one call of zlib

[[noreturn]] void fail(const std::filesystem::path& file) {
  throw ResourceError(fmt::format("[gzip] {}: cannot be written: {}", file.string(),
                                  errno != 0 ? std::strerror(errno) : "zlib failed"));
}

}  // namespace

GzipWriter::GzipWriter(const std::filesystem::path& file) : file_(file) {
  errno = 0;
  stream_ = gzopen(file.c_str(), "wb6");
  if (stream_ == nullptr) fail(file_);
}

GzipWriter::~GzipWriter() {
  if (stream_ != nullptr) gzclose(static_cast<gzFile>(stream_));
}

void GzipWriter::write(std::string_view text) {
  ANABATIC_CHECK(stream_ != nullptr, "[gzip] {} is closed", file_.string());
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, kMostBytes);
    errno = 0;
    if (gzwrite(static_cast<gzFile>(stream_), piece.data(), static_cast<unsigned>(piece.size())) <=
        0)
      fail(file_);
    text.remove_prefix(piece.size());
  }
}

void GzipWriter::close() {
  ANABATIC_CHECK(stream_ != nullptr, "[gzip] {} is closed", file_.string());
  errno = 0;
  const int status = gzclose(static_cast<gzFile>(stream_));
  stream_ = nullptr;
  if (status != Z_OK) fail(file_);
}

}  // namespace anabatic::io
