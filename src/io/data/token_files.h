// SPDX-License-Identifier: Apache-2.0
// The files a user names as data, as token files: .bin/.idx are opened, text and JSON tokenised
// once.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/cache_directory.h"
#include "io/data/data_format.h"
#include "io/data/indexed_file.h"
#include "io/data/token_cache.h"
#include "io/data/tokenize_files.h"
#include "io/data/weight_file.h"

namespace anabatic::io {

struct TokenFile {
  DataFile source;
  IndexedFile tokens;
  std::optional<IdRange> ids = {};                   // if known since they were written
  std::shared_ptr<const CacheDirectory> cache = {};  // keeps a temporary cache alive
  std::optional<WeightFile> weights = {};            // none: each token weighs 1
  std::string row_kind = {};                         // of a file of rows
};

// Ids of text and JSON come from `cache` or are stored there (io/data/token_cache.h). `tokenizer`
// is a hash of the tokenizer's files, which determine the ids together with the options. `tokenize`
// and `cache` may be empty if all files are .bin/.idx. ResourceError if a file changes while it is
// read.
std::vector<TokenFile> open_token_files(std::span<const DataFile> files, const Tokenize& tokenize,
                                        const TokenizeOptions& options,
                                        const std::shared_ptr<const CacheDirectory>& cache,
                                        const std::string& tokenizer);

}  // namespace anabatic::io
