// SPDX-License-Identifier: Apache-2.0
#include "io/data/token_files.h"

#include <sys/file.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace anabatic::io {
namespace {

namespace fs = std::filesystem;

fs::path with_suffix(fs::path path, const char* suffix) { return path += suffix; }

fs::path cache_prefix(const DataFile& source, const TokenizeOptions& options,
                      const fs::path& cache_directory, const std::string& fingerprint) {
  const fs::path& file = source.path;
  const std::string key =
      fmt::format("1\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", fs::absolute(file).string(),
                  to_string(source.format), fs::file_size(file),
                  fs::last_write_time(file).time_since_epoch().count(), options.vocab_size,
                  options.eos_id, options.append_eos, options.json_field, fingerprint);
  const XXH64_hash_t hash = XXH3_64bits(key.data(), key.size());
  return cache_directory / fmt::format("{}-{:016x}", file.filename().string(), hash);
}

// Held while a cache entry is made, so that runs that share a cache make it once. The empty lock
// file stays: removing it would let two runs hold different locks of one name.
class CacheLock {
 public:
  explicit CacheLock(const fs::path& prefix) : file_(File::append(with_suffix(prefix, ".lock"))) {
    while (::flock(file_.descriptor(), LOCK_EX) != 0) {
      if (errno != EINTR) {
        throw ResourceError(
            fmt::format("[data] cannot lock {}: {}", file_.path().string(), std::strerror(errno)));
      }
    }
  }

 private:
  File file_;  // closing it unlocks
};

bool pair_exists(const fs::path& prefix) {
  return fs::is_regular_file(with_suffix(prefix, ".idx")) &&
         fs::is_regular_file(with_suffix(prefix, ".bin"));
}

}  // namespace

std::vector<TokenFile> open_token_files(std::span<const DataFile> files, const Tokenize& tokenize,
                                        const TokenizeOptions& options,
                                        const fs::path& cache_directory,
                                        const std::string& tokenizer_fingerprint) {
  std::vector<TokenFile> result;
  for (const DataFile& file : files) {
    if (file.format == DataFormat::kTokens) {
      result.push_back({file, IndexedFile(*indexed_pair(file.path))});
      continue;
    }
    const std::string name = file.path.string();
    ANABATIC_REQUIRE(tokenize != nullptr, "[data] {} is text, which needs a tokenizer", name);
    fs::create_directories(cache_directory);
    const fs::path prefix = cache_prefix(file, options, cache_directory, tokenizer_fingerprint);
    const CacheLock lock(prefix);
    if (!pair_exists(prefix)) tokenize_files(std::span(&file, 1), tokenize, prefix, options);
    result.push_back({file, IndexedFile(prefix)});
  }
  return result;
}

}  // namespace anabatic::io
