// SPDX-License-Identifier: Apache-2.0
// Text written as a gzip file, piece by piece.
#pragma once
#include <filesystem>
#include <string_view>

namespace anabatic::io {

// ResourceError naming the file when the system refuses. A file that was not closed is cut short.
class GzipWriter {
 public:
  explicit GzipWriter(const std::filesystem::path& file);
  ~GzipWriter();
  GzipWriter(const GzipWriter&) = delete;
  GzipWriter& operator=(const GzipWriter&) = delete;

  void write(std::string_view text);
  void close();  // ends the file; nothing may follow

 private:
  std::filesystem::path file_;
  void* stream_ = nullptr;
};

}  // namespace anabatic::io
