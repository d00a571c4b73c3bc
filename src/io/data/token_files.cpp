// SPDX-License-Identifier: Apache-2.0
#include "io/data/token_files.h"

#include "base/error.h"
#include "base/log.h"
#include "io/data/fingerprint.h"

namespace anabatic::io {
namespace {

namespace fs = std::filesystem;

CachedTokens tokens_of(const DataFile& file, const Tokenize& tokenize,
                       const TokenizeOptions& options, const CacheDirectory& cache,
                       const std::string& tokenizer, std::int64_t& num_made) {
  const FileStamp before = stamp_of(file.path);
  const TokenCacheKey key{.content = content_hash(file.path, options.threads),
                          .format = file.format,
                          .tokenizer = tokenizer,
                          .options = options};
  return cached_tokens(cache, key, options.threads, [&](const std::filesystem::path& prefix) {
    ++num_made;
    TokenizeOptions once = options;
    once.is_durable = false;  // an entry that a crash truncates is rebuilt
    TokenizeCounts counts = tokenize_files(std::span(&file, 1), tokenize, prefix, once);
    if (!stamp_of(file.path).has_same_content(before))
      throw ResourceError(
          fmt::format("[data] {}: changed while it was tokenised", file.path.string()));
    return counts;
  });
}

void require_kind(const WeightFile& weights, const TokenizeOptions& options,
                  const IndexedPaths& pair) {
  ANABATIC_REQUIRE(
      weights.is_of_pairs() == options.has_pairs, "[data] {}: expected {}, got {}",
      weights_path(pair).string(),
      options.has_pairs ? "pairs (train.objective: dpo)" : "rows (train.objective: sft)",
      weights.is_of_pairs() ? "pairs, which train.objective: dpo trains on"
                            : "rows, which train.objective: sft trains on");
}

}  // namespace

std::vector<TokenFile> open_token_files(std::span<const DataFile> files, const Tokenize& tokenize,
                                        const TokenizeOptions& options,
                                        const std::shared_ptr<const CacheDirectory>& cache,
                                        const std::string& tokenizer) {
  std::vector<TokenFile> result;
  result.reserve(files.size());
  std::int64_t num_made = 0;
  for (const DataFile& file : files) {
    if (file.format == DataFormat::kTokens) {
      const auto pair = indexed_pair(file.path);
      if (!pair)
        throw ResourceError(
            fmt::format("[data] {}: expected a .bin/.idx pair, found none", file.path.string()));
      result.push_back({file, IndexedFile(*pair)});
      const bool has_weights = fs::exists(weights_path(*pair));
      ANABATIC_REQUIRE(has_weights || !options.has_pairs,
                       "[data] {}: expected preferences, which have {} (anabatic tokenize "
                       "--train.objective dpo), found none",
                       file.path.string(), weights_path(*pair).string());
      if (has_weights) {
        if (options.has_rows)
          require_kind(result.back().weights.emplace(*pair), options, *pair);
        else
          log_warning("[data] {}: is not read, for train.objective: lm trains every token",
                      weights_path(*pair).string());
      }
      continue;
    }
    ANABATIC_REQUIRE(tokenize != nullptr && cache != nullptr,
                     "[data] {} is text, which needs a tokenizer", file.path.string());
    CachedTokens made = tokens_of(file, tokenize, options, *cache, tokenizer, num_made);
    result.push_back({file, std::move(made.tokens), made.ids, cache, std::move(made.weights),
                      std::move(made.row_kind)});
  }
  if (num_made > 0)
    log_info("data: tokenized {} {}; the token ids are kept {}", num_made,
             num_made == 1 ? "file" : "files",
             cache->is_temporary() ? "for this run" : "in " + cache->path().string());
  return result;
}

}  // namespace anabatic::io
