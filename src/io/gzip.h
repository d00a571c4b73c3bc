// SPDX-License-Identifier: Apache-2.0
// Text written as a gzip file, piece by piece.
#pragma once
#include <filesystem>
#include <string_view>

#include "io/file.h"

namespace anabatic::io {

// ResourceError naming the file when the system refuses. The file appears under its name in
// close(), whole; before that it ends in ".partial", and goes with a writer that was not closed.
class GzipWriter {
 public:
  explicit GzipWriter(const std::filesystem::path& file);
  ~GzipWriter();
  GzipWriter(const GzipWriter&) = delete;
  GzipWriter& operator=(const GzipWriter&) = delete;

  void write(std::string_view text);
  void close();  // ends the file; nothing may follow

 private:
  std::filesystem::path target_;
  File file_;
  void* stream_ = nullptr;
};

}  // namespace anabatic::io
