// SPDX-License-Identifier: Apache-2.0
#include "io/data/data_format.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "io/byte_source.h"
#include "io/data/indexed_file.h"

namespace anabatic::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHeadBytes = std::size_t{1} << 20;
constexpr int kJudgedLines = 64;

struct FormatName {
  DataFormat format;
  std::string_view key, words;
};
constexpr std::array kNames = {
    FormatName{DataFormat::kAuto, "auto", "by suffix or content"},
    FormatName{DataFormat::kText, "text", "text"},
    FormatName{DataFormat::kJsonLines, "jsonl", "JSON lines"},
    FormatName{DataFormat::kJson, "json", "JSON"},
    FormatName{DataFormat::kTokens, "bin", ".bin/.idx"},
};

const FormatName& name_of(DataFormat format) {
  return *std::find_if(kNames.begin(), kNames.end(),
                       [&](const FormatName& name) { return name.format == format; });
}

std::string lower_suffix(const fs::path& path) {
  std::string suffix = path.extension().string();
  for (char& byte : suffix)
    byte = static_cast<char>(std::tolower(static_cast<unsigned char>(byte)));
  return suffix;
}

DataFormat format_of_suffix(const std::string& suffix) {
  if (suffix == ".txt" || suffix == ".text") return DataFormat::kText;
  if (suffix == ".jsonl" || suffix == ".ndjson") return DataFormat::kJsonLines;
  return suffix == ".json" ? DataFormat::kJson : DataFormat::kAuto;
}

// The first bytes of a file, and whether they are all.
struct Head {
  std::string text;
  bool is_whole = false;
};

constexpr std::string_view kUnknownBinary = "binary data";

// The first bytes of binary files that users give by mistake.
std::string_view kind_of_binary(std::string_view head) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kMagic = {{
      {"PAR1", "a Parquet file"},
      {"ARROW1", "an Arrow file"},
      {"\x28\xB5\x2F\xFD", "zstd"},
      {"\xFD"
       "7zXZ",
       "xz"},
      {"BZh", "bzip2"},
      {"PK\x03\x04", "a zip archive"},
      {"MMIDIDX", "the index of a .bin/.idx pair"},
      {"\xFF\xFE", "UTF-16"},
      {"\xFE\xFF", "UTF-16"},
  }};
  for (const auto& [magic, kind] : kMagic)
    if (head.starts_with(magic)) return kind;
  constexpr std::size_t kTarMagic = 257;
  if (head.size() > kTarMagic && head.substr(kTarMagic).starts_with("ustar"))
    return "a tar archive";
  return kUnknownBinary;
}

// The first byte that no text has: NUL, or one that is not UTF-8.
std::optional<std::size_t> find_binary(const Head& head) {
  const std::string_view text = head.text;
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte == 0) return at;
    if (byte < 0x80) {
      ++at;
      continue;
    }
    utf8proc_int32_t code = -1;
    const auto length =
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                         static_cast<utf8proc_ssize_t>(text.size() - at), &code);
    if (length < 0) {
      if (!head.is_whole && text.size() - at < 4) break;  // a character that the head cuts
      return at;
    }
    at += static_cast<std::size_t>(length);
  }
  return std::nullopt;
}

// Broken JSON is for its reader to judge, which names the line.
void require_text(const DataFile& file, const Head& head) {
  const bool is_json = file.format == DataFormat::kJsonLines || file.format == DataFormat::kJson;
  const auto bad = find_binary(head);
  if (is_json && kind_of_binary(head.text) == kUnknownBinary) return;
  ANABATIC_REQUIRE(
      !bad,
      "[data] {}: expected UTF-8 text, JSON or a .bin/.idx pair, got {} (byte 0x{:02X} "
      "at offset {}{})",
      file.path.string(), kind_of_binary(head.text), static_cast<unsigned char>(head.text[*bad]),
      *bad, file.is_gzip ? " of the decompressed data" : "");
}

// Json parsing of a text that may be cut: 1 if it is JSON, 0 if it could be the begin of some, -1
// if it is none.
int judge_json(std::string_view text, Json& value) {
  try {
    value = parse_json(text);
    return 1;
  } catch (const Json::parse_error& error) {
    return error.byte > text.size() ? 0 : -1;
  } catch (const Json::exception&) {
    return -1;
  }
}

// Where the first value of `text`, which begins with a bracket, ends; the end where it does not.
std::size_t first_value_size(std::string_view text) {
  int depth = 0;
  bool is_in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (is_in_string) {
      if (text[at] == '\\')
        ++at;
      else if (text[at] == '"')
        is_in_string = false;
    } else if (text[at] == '"') {
      is_in_string = true;
    } else if (text[at] == '{' || text[at] == '[') {
      ++depth;
    } else if ((text[at] == '}' || text[at] == ']') && --depth == 0) {
      return at + 1;
    }
  }
  return text.size();
}

constexpr std::string_view kSpaces = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpaces);
  return first == std::string_view::npos ? "" : text.substr(first);
}

// Most of the first whole lines are JSON objects or arrays, and more than one line is there or the
// only one is an object.
bool looks_like_json_lines(std::string_view text, bool is_whole) {
  int lines = 0, objects = 0, values = 0;
  for (std::size_t begin = 0; begin < text.size() && lines < kJudgedLines;) {
    std::size_t end = text.find('\n', begin);
    if (end == std::string_view::npos && !is_whole) break;
    end = std::min(end, text.size());
    const std::string_view line = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    if (line.empty()) continue;
    ++lines;
    if (line[0] != '{' && line[0] != '[') continue;
    const Json value = try_parse_json(line);
    objects += value.is_object() ? 1 : 0;
    values += value.is_structured() ? 1 : 0;
  }
  return lines > 0 && (2 * objects > lines || (values == lines && lines > 1));
}

// A value over several lines: an object, an array, or the begin of one that the head cuts.
bool looks_like_json(std::string_view text, bool is_whole) {
  Json value;
  if (text[0] == '[') {
    const std::string_view first = trimmed(text.substr(1));
    if (first.starts_with('{'))
      return judge_json(first.substr(0, first_value_size(first)), value) >= 0;
    const int judged = judge_json(text, value);
    return judged > 0 || (judged == 0 && !is_whole);
  }
  const std::size_t size = first_value_size(text);
  if (judge_json(text.substr(0, size), value) < 0) return false;
  const std::string_view rest = trimmed(text.substr(size));
  return rest.empty() || rest[0] == '{';
}

DataFormat format_of_content(const Head& head) {
  std::string_view text = head.text;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  text = trimmed(text);
  if (text.empty() || (text[0] != '{' && text[0] != '[')) return DataFormat::kText;
  if (looks_like_json_lines(text, head.is_whole)) return DataFormat::kJsonLines;
  return looks_like_json(text, head.is_whole) ? DataFormat::kJson : DataFormat::kText;
}

void require_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_regular_file(status)) return;
  const char* got = fs::is_directory(status) ? "a folder"
                    : fs::exists(status)     ? "a pipe or device; write it to a file first"
                                             : "no file of that name";
  throw ResourceError(
      fmt::format("[data] {}: expected a text or JSON file, or a .bin/.idx pair, "
                  "got {}",
                  path.string(), got));
}

Head read_head(const fs::path& path) {
  ByteSource source(path);
  Head head;
  head.text.resize(kHeadBytes);
  head.text.resize(source.read(std::as_writable_bytes(std::span(head.text))));
  head.is_whole = head.text.size() < kHeadBytes;
  return head;
}

}  // namespace

std::optional<DataFormat> data_format_from_string(std::string_view text) {
  for (const FormatName& name : kNames)
    if (name.key == text) return name.format;
  return std::nullopt;
}

std::string_view to_string(DataFormat format) { return name_of(format).key; }

std::string describe(const DataFile& file) {
  return fmt::format("{}{}{}", name_of(file.format).words, file.by_content ? ", by content" : "",
                     file.is_gzip ? ", gzip" : "");
}

DataFile detect_format(const fs::path& path, DataFormat asked) {
  DataFile file{.path = path};
  if (asked == DataFormat::kAuto || asked == DataFormat::kTokens) {
    if (indexed_pair(path)) {
      file.format = DataFormat::kTokens;
      return file;
    }
    const std::string suffix = lower_suffix(path);
    const bool is_half = suffix == ".bin" || suffix == ".idx";
    if (asked == DataFormat::kTokens || is_half) {
      throw ResourceError(fmt::format(
          "[data] {}: expected a .bin/.idx pair, found {}", path.string(),
          fs::exists(path) ? fmt::format("no {} next to it", suffix == ".idx" ? ".bin" : ".idx")
                           : "none"));
    }
  }
  require_file(path);
  file.is_gzip = ByteSource(path).is_gzip();
  fs::path name = path.filename();
  if (lower_suffix(name) == ".gz") {
    ANABATIC_REQUIRE(file.is_gzip,
                     "[data] {}: expected gzip data, as the suffix says, got {}; rename the file",
                     path.string(), fs::file_size(path) == 0 ? "an empty file" : "others");
    name = name.stem();
  }
  file.format = asked == DataFormat::kAuto ? format_of_suffix(lower_suffix(name)) : asked;
  if (asked == DataFormat::kText) return file;
  const Head head = read_head(path);
  require_text(file, head);
  if (file.format == DataFormat::kAuto) {
    file.format = format_of_content(head);
    file.by_content = true;
  } else if (file.format == DataFormat::kText && asked == DataFormat::kAuto &&
             format_of_content(head) != DataFormat::kText) {
    log_warning(
        "[data] {}: is read as text because of its suffix, although it looks like JSON; "
        "data.format: {} reads its documents",
        path.string(), to_string(format_of_content(head)));
  }
  return file;
}

std::vector<DataFile> detect_formats(std::span<const fs::path> paths, DataFormat asked) {
  std::vector<DataFile> files;
  std::string problems;
  bool is_missing = false;
  int count = 0;
  for (const fs::path& path : paths) {
    try {
      files.push_back(detect_format(path, asked));
    } catch (const Error& error) {
      problems += fmt::format("{}{}", count++ > 0 ? "\n" : "", error.what());
      is_missing = is_missing || dynamic_cast<const ResourceError*>(&error) != nullptr;
    }
  }
  if (count > 0 && is_missing) throw ResourceError(problems);
  if (count > 0) throw InvalidArgument(problems);
  return files;
}

}  // namespace anabatic::io
