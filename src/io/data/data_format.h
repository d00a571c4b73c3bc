// SPDX-License-Identifier: Apache-2.0
// What a data file holds: by its suffix in any case, else by its content.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::io {

enum class DataFormat {
  kAuto,       // by suffix, then content
  kText,       // one document, the whole file
  kJsonLines,  // a JSON object a line
  kJson,       // one array of objects, or objects one after the other
  kTokens      // PREFIX.bin and PREFIX.idx
};

// "auto", "text", "jsonl", "json", "bin", as data.format writes them.
std::optional<DataFormat> data_format_from_string(std::string_view text);
std::string_view to_string(DataFormat format);

struct DataFile {
  std::filesystem::path path;
  DataFormat format = DataFormat::kText;  // never kAuto
  bool is_gzip = false;
  bool by_content = false;  // the suffix said nothing
};

// "JSON lines, by content, gzip", for people.
std::string describe(const DataFile& file);

// PREFIX, PREFIX.bin and PREFIX.idx name a pair, whose suffixes may be in upper or lower case. With
// kAuto as `asked` the suffix tells the format: .txt and .text, .jsonl and .ndjson, .json, each
// with or without .gz after it. A file with another suffix or none is JSON lines or JSON if its
// first lines or its first value are JSON objects, and else text. Any file may be gzip, which its
// magic number tells. InvalidArgument for binary content and for .gz without that magic number.
// ResourceError for a path that is no file.
DataFile detect_format(const std::filesystem::path& path, DataFormat asked);

// Formats of all files; one error names every file that has one.
std::vector<DataFile> detect_formats(std::span<const std::filesystem::path> paths,
                                     DataFormat asked);

}  // namespace anabatic::io
