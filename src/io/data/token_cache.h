// SPDX-License-Identifier: Apache-2.0
// Token ids of text and JSON files, kept between runs under a hash of all that determines them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "io/cache_directory.h"
#include "io/data/data_format.h"
#include "io/data/indexed_file.h"
#include "io/data/tokenize_files.h"
#include "io/data/weight_file.h"

namespace anabatic::io {

struct IdRange {
  std::int64_t min = INT64_MAX, max = INT64_MIN;
};

// The one place that says what the ids of a file follow from. Names, sizes and times are no part:
// other content under them has another key, and the same content under another name the same one.
struct TokenCacheKey {
  std::string content;  // content_hash of the file, compressed or not
  DataFormat format = DataFormat::kText;
  std::string tokenizer;  // content_hash of the tokenizer's files
  TokenizeOptions options;

  std::string hash() const;  // 32 hexadecimal digits
};

struct CachedTokens {
  IndexedFile tokens;
  IdRange ids;
  std::optional<WeightFile> weights{};  // of rows
  std::string row_kind{};               // likewise
};

// Writes PREFIX.bin and PREFIX.idx, and of rows PREFIX.weights.
using MakeTokens = std::function<TokenizeCounts(const std::filesystem::path& prefix)>;

// An entry is a folder HASH with tokens.bin, tokens.idx, of rows tokens.weights, and manifest.json,
// which has the hashes of these files. A truncated or altered entry is rebuilt. It is written as
// HASH.partial and renamed when complete. Runs that share a cache wait for the one that writes an
// entry. ResourceError if the folder cannot be written to.
CachedTokens cached_tokens(const CacheDirectory& cache, const TokenCacheKey& key, int threads,
                           const MakeTokens& make);

}  // namespace anabatic::io
