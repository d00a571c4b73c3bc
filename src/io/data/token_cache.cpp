// SPDX-License-Identifier: Apache-2.0
#include "io/data/token_cache.h"

#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rounding.h"
#include "base/text.h"
#include "io/data/check_ids.h"
#include "io/data/fingerprint.h"
#include "io/parallel.h"

namespace anabatic::io {
namespace {

namespace fs = std::filesystem;

constexpr int kCacheFormat = 1;  // of keys and entries
constexpr std::int64_t kMostEntryBytes = std::int64_t{1} << 16;

// Held while an entry is made; the file goes with it. Whoever waited finds the name gone, or of
// another file, and tries again.
class EntryLock {
 public:
  explicit EntryLock(const fs::path& path) {
    while (true) {
      file_ = File::append(path);
      if (::flock(file_.descriptor(), LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK)
          log_info("data: waiting for another run, which tokenizes these files");
        while (::flock(file_.descriptor(), LOCK_EX) != 0)
          if (errno != EINTR)
            throw ResourceError(
                fmt::format("[cache] cannot lock {}: {}; data.cache names another "
                            "folder",
                            path.string(), std::strerror(errno)));
      }
      struct stat held {};
      struct stat named {};
      if (::fstat(file_.descriptor(), &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
          held.st_ino == named.st_ino && held.st_dev == named.st_dev)
        return;
    }
  }
  ~EntryLock() { ::unlink(file_.path().c_str()); }
  EntryLock(const EntryLock&) = delete;
  EntryLock& operator=(const EntryLock&) = delete;

 private:
  File file_;  // closing it unlocks
};

fs::path bin_of(const fs::path& entry) { return entry / "tokens.bin"; }
fs::path idx_of(const fs::path& entry) { return entry / "tokens.idx"; }
IndexedPaths pair_of(const fs::path& entry) { return {bin_of(entry), idx_of(entry)}; }

// `row_kind` is there for an entry of rows.
std::string manifest_of(const fs::path& entry, const IdRange& ids,
                        const std::optional<std::string>& row_kind, int threads) {
  OrderedJson json{{"format", kCacheFormat},
                   {"bin", content_hash(bin_of(entry), threads)},
                   {"idx", content_hash(idx_of(entry), threads)},
                   {"smallest_id", ids.min},
                   {"largest_id", ids.max}};
  if (row_kind) {
    json["weights"] = content_hash(weights_path(pair_of(entry)), threads);
    json["row_kind"] = *row_kind;
  }
  json["manifest"] = content_hash(dump_json(json));
  return dump_json(json, 2);
}

// None for an entry that is not there or not whole.
std::optional<CachedTokens> load(const fs::path& entry, int threads) {
  std::error_code error;
  if (!fs::is_directory(entry, error)) return std::nullopt;
  try {
    const std::string text = read_file(entry / "manifest.json", kMostEntryBytes);
    const Json json = try_parse_json(text);
    if (!json.is_object()) return std::nullopt;
    const IdRange ids{json.value("smallest_id", std::int64_t{0}),
                      json.value("largest_id", std::int64_t{0})};
    std::optional<std::string> row_kind;
    if (json.contains("row_kind")) row_kind = json["row_kind"].get<std::string>();
    if (manifest_of(entry, ids, row_kind, threads) != text) return std::nullopt;
    CachedTokens found{IndexedFile(pair_of(entry)), ids};
    if (row_kind) {
      found.weights.emplace(pair_of(entry));
      found.row_kind = *row_kind;
    }
    return found;
  } catch (const Error&) {
    return std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

IdRange range_of(const IndexedFile& tokens, int threads) {
  std::vector<IdRange> ranges(
      static_cast<std::size_t>(ceil_div(tokens.num_tokens(), kRangeTokens)));
  parallel_tasks(std::ssize(ranges), threads, [&](std::int64_t block) {
    const std::int64_t begin = block * kRangeTokens;
    ranges[static_cast<std::size_t>(block)] =
        id_range(tokens, begin, std::min(kRangeTokens, tokens.num_tokens() - begin));
  });
  IdRange all;
  for (const IdRange& range : ranges)
    all = {std::min(all.min, range.min), std::max(all.max, range.max)};
  return all;
}

void make_entry(const fs::path& entry, int threads, const MakeTokens& make) {
  const fs::path partial = fs::path(entry) += ".partial";
  fs::remove_all(partial);
  fs::create_directory(partial);
  try {
    const TokenizeCounts counts = make(partial / "tokens");
    const IndexedFile tokens(pair_of(partial));
    std::optional<std::string> row_kind;
    if (fs::exists(weights_path(pair_of(partial)))) row_kind = counts.row_kinds;
    const std::string manifest = manifest_of(partial, range_of(tokens, threads), row_kind, threads);
    File::create(partial / "manifest.json").write(std::as_bytes(std::span(manifest)));
    fs::remove_all(entry);
    fs::rename(partial, entry);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(partial, ignored);
    throw;
  }
}

}  // namespace

std::string TokenCacheKey::hash() const {
  // Every field of TokenizeOptions that changes ids or weights.
  const std::string rows =
      options.has_rows ? fmt::format("rows {}\n", options.row_rules) : std::string();
  return content_hash(fmt::format(
      "{}\ncontent {}\nformat {}\ntokenizer {}\nvocabulary {}\nbefore {}\nbehind {}\nfield {}\n{}",
      kCacheFormat, content, to_string(format), tokenizer, options.vocab_size,
      fmt::join(options.ends.prefix, " "), fmt::join(options.ends.suffix, " "), options.json_field,
      rows));
}

CachedTokens cached_tokens(const CacheDirectory& cache, const TokenCacheKey& key, int threads,
                           const MakeTokens& make) {
  const fs::path entry = cache.path() / key.hash();
  if (auto found = load(entry, threads)) return std::move(*found);
  try {
    const EntryLock lock(fs::path(entry) += ".lock");
    // Another run may have made it meanwhile.
    if (auto found = load(entry, threads)) return std::move(*found);
    if (fs::exists(entry)) log_warning("[cache] {} is damaged and is rebuilt", entry.string());
    make_entry(entry, threads, make);
    if (auto found = load(entry, threads)) return std::move(*found);
  } catch (const fs::filesystem_error& error) {
    throw ResourceError(fmt::format("[cache] {}; data.cache names another folder", error.what()));
  }
  throw ResourceError(
      fmt::format("[cache] {} differs from what was written; is the disk healthy? data.cache names "
                  "another folder",
                  entry.string()));
}

}  // namespace anabatic::io
