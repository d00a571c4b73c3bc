// SPDX-License-Identifier: Apache-2.0
// Temporary folders and small token files for the tests of io.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "io/data/indexed_file.h"
#include "io/data/token_files.h"
#include "io/gzip.h"

namespace anabatic::io {

class TempDirectory {
 public:
  TempDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "anabatic_io_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The bytes of one gzip member.
inline std::string gzipped(std::string_view text) {
  const TempDirectory directory;
  GzipWriter writer(directory / "a.gz");
  writer.write(text);
  writer.close();
  return read_text(directory / "a.gz");
}

using Documents = std::vector<std::vector<std::int32_t>>;

inline IndexedFile write_documents(const std::filesystem::path& prefix, const Documents& documents,
                                   TokenType type = TokenType::kUint16) {
  IndexedFileWriter writer(prefix, type, false);
  for (const auto& document : documents) {
    writer.append(document);
    writer.end_document();
  }
  writer.finish();
  return IndexedFile(prefix);
}

inline Documents documents_of(const IndexedFile& file) {
  Documents documents;
  for (std::int64_t d = 0; d < file.num_documents(); ++d) {
    const std::int64_t begin = file.document_begin(d);
    std::vector<std::int64_t> ids(static_cast<std::size_t>(file.document_begin(d + 1) - begin));
    std::vector<std::byte> scratch(ids.size() * 8);
    file.read(begin, ids, scratch);
    documents.emplace_back(ids.begin(), ids.end());
  }
  return documents;
}

// One id a byte; a hidden state would show if chunks were not independent.
inline void tokenize_bytes(std::string_view chunk, bool, std::vector<std::int32_t>& ids) {
  for (const char c : chunk) ids.push_back(static_cast<unsigned char>(c));
}

// What `action` throws as Error, or "" when nothing.
template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace anabatic::io
