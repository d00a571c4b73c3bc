// SPDX-License-Identifier: Apache-2.0
#include "io/data/check_ids.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/data/fingerprint.h"
#include "io/parallel.h"

namespace anabatic::io {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kKeptBytes = std::int64_t{4} << 20;  // smaller files are read again faster
constexpr std::string_view kKeptFormat = "anabatic id range 1";

IdRange join(const IdRange& a, const IdRange& b) {
  return {std::min(a.min, b.min), std::max(a.max, b.max)};
}

// Fixed trip counts let the compiler use vectors.
template <class T>
IdRange range_of(std::span<const std::byte> raw) {
  constexpr std::size_t kPart = 1024;
  T low = std::numeric_limits<T>::max();
  T high = std::numeric_limits<T>::lowest();
  std::size_t at = 0;
  T part[kPart];
  for (; at + kPart * sizeof(T) <= raw.size(); at += kPart * sizeof(T)) {
    std::memcpy(part, raw.data() + at, sizeof(part));
    for (std::size_t i = 0; i < kPart; ++i) {
      low = part[i] < low ? part[i] : low;
      high = part[i] > high ? part[i] : high;
    }
  }
  for (; at < raw.size(); at += sizeof(T)) {
    T id;
    std::memcpy(&id, raw.data() + at, sizeof(T));
    low = std::min(low, id);
    high = std::max(high, id);
  }
  return raw.empty() ? IdRange{} : IdRange{std::int64_t{low}, std::int64_t{high}};
}

IdRange range_of(TokenType type, std::span<const std::byte> raw) {
  switch (type) {
    case TokenType::kUint8:
      return range_of<std::uint8_t>(raw);
    case TokenType::kInt8:
      return range_of<std::int8_t>(raw);
    case TokenType::kInt16:
      return range_of<std::int16_t>(raw);
    case TokenType::kUint16:
      return range_of<std::uint16_t>(raw);
    case TokenType::kInt32:
      return range_of<std::int32_t>(raw);
    case TokenType::kInt64:
      return range_of<std::int64_t>(raw);
  }
  throw InvalidArgument("[bin] unknown token type");
}

// Where a type has no negative ids, the largest that it can hold.
std::optional<std::int64_t> largest_of(TokenType type) {
  if (type == TokenType::kUint8) return 255;
  if (type == TokenType::kUint16) return 65535;
  return std::nullopt;
}

// Where the range of this file is kept; empty for a file that is read faster.
fs::path kept_range(const IndexedFile& file, const std::function<fs::path()>& cache) {
  const FileStamp& stamp = file.bin_stamp();
  if (stamp.bytes <= kKeptBytes || cache == nullptr) return {};
  const fs::path folder = cache();
  if (folder.empty()) return {};
  const std::string key =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", kKeptFormat, stamp.device, stamp.inode,
                  stamp.bytes, stamp.modified_ns, stamp.changed_ns, static_cast<int>(file.type()),
                  fingerprint(file.bin_path()).hash);
  return folder / fmt::format("ids-{}", content_hash(key));
}

std::string text_of(const IdRange& range, const fs::path& path) {
  const std::string text = fmt::format("{}\n{} {}\n", kKeptFormat, range.min, range.max);
  return text + content_hash(text + path.filename().string()) + "\n";
}

std::optional<IdRange> read_kept(const fs::path& path) {
  std::error_code error;
  if (path.empty() || !fs::is_regular_file(path, error)) return std::nullopt;
  const std::string text = read_file(path);
  std::istringstream lines(text);
  std::string format;
  IdRange range;
  std::getline(lines, format);
  lines >> range.min >> range.max;
  if (!lines || text != text_of(range, path)) return std::nullopt;
  return range;
}

// A run does not need this file: a failure is only a warning.
void keep(const fs::path& path, const IdRange& range) {
  try {
    write_file_atomically(path, text_of(range, path));
  } catch (const Error& error) {
    log_warning("[cache] the checked range of ids cannot be stored: {}", error.what());
  }
}

[[noreturn]] void refuse_ids(const TokenFile& file, std::int64_t vocab_size) {
  const IndexedFile& tokens = file.tokens;
  std::vector<std::int64_t> ids;
  std::vector<std::byte> raw(kRangeTokens * sizeof(std::int64_t));
  for (std::int64_t begin = 0; begin < tokens.num_tokens(); begin += kRangeTokens) {
    ids.resize(static_cast<std::size_t>(std::min(kRangeTokens, tokens.num_tokens() - begin)));
    tokens.read(begin, ids, raw);
    const auto bad =
        std::ranges::find_if(ids, [&](std::int64_t id) { return id < 0 || id >= vocab_size; });
    if (bad == ids.end()) continue;
    const std::int64_t place = begin + (bad - ids.begin());
    const std::int64_t document = tokens.document_of(place);
    throw InvalidArgument(fmt::format(
        "[data] {}, document {}, token {}: expected an id in [0, {}) (the model's vocabulary), got "
        "{}; was the data made with another tokenizer?",
        file.source.path.string(), document, place - tokens.document_begin(document), vocab_size,
        *bad));
  }
  throw ResourceError(
      fmt::format("[data] {}: changed while its ids were read", file.source.path.string()));
}

struct Block {
  std::size_t file = 0;
  std::int64_t begin = 0;
  IdRange range;
};

}  // namespace

IdRange id_range(const IndexedFile& file, std::int64_t begin, std::int64_t count) {
  std::vector<std::byte> raw(static_cast<std::size_t>(count * size_bytes(file.type())));
  file.read_raw(begin, raw);
  return range_of(file.type(), raw);
}

std::int64_t check_ids(std::span<const TokenFile> files, std::int64_t vocab_size, int threads,
                       const std::function<fs::path()>& cache) {
  std::int64_t num_read = 0;
  std::vector<IdRange> ranges(files.size());
  std::vector<fs::path> kept(files.size());
  std::vector<Block> blocks;
  for (std::size_t f = 0; f < files.size(); ++f) {
    const IndexedFile& tokens = files[f].tokens;
    const auto largest = largest_of(tokens.type());
    if (largest && *largest < vocab_size) continue;
    if (files[f].ids) {
      ranges[f] = *files[f].ids;
      continue;
    }
    kept[f] = kept_range(tokens, cache);
    if (const auto known = read_kept(kept[f])) {
      ranges[f] = *known;
      kept[f].clear();
      continue;
    }
    ++num_read;
    for (std::int64_t begin = 0; begin < tokens.num_tokens(); begin += kRangeTokens)
      blocks.push_back({f, begin, {}});
  }
  parallel_tasks(std::ssize(blocks), threads, [&](std::int64_t b) {
    Block& block = blocks[static_cast<std::size_t>(b)];
    const IndexedFile& tokens = files[block.file].tokens;
    block.range =
        id_range(tokens, block.begin, std::min(kRangeTokens, tokens.num_tokens() - block.begin));
  });
  for (const Block& block : blocks) ranges[block.file] = join(ranges[block.file], block.range);
  for (std::size_t f = 0; f < files.size(); ++f) {
    if (!kept[f].empty()) keep(kept[f], ranges[f]);
    if (ranges[f].min <= ranges[f].max && (ranges[f].min < 0 || ranges[f].max >= vocab_size))
      refuse_ids(files[f], vocab_size);
  }
  return num_read;
}

}  // namespace anabatic::io
