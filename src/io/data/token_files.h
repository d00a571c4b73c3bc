// SPDX-License-Identifier: Apache-2.0
// The files a user names as data, as token files: .bin/.idx are opened, text and JSONL tokenised
// once.
#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/data/indexed_file.h"
#include "io/data/tokenize_files.h"

namespace anabatic::io {

struct TokenFile {
  std::filesystem::path source;  // as the user named it
  IndexedFile tokens;
};

// PREFIX, PREFIX.bin and PREFIX.idx all name the pair; empty if `path` is text or JSONL.
std::filesystem::path indexed_prefix(const std::filesystem::path& path);

// Text and JSONL go to cache_directory/NAME-HASH.bin/.idx (made if needed). The hash covers path,
// size and time of change of the file, the options that change ids, and `tokenizer_fingerprint`, so
// a later run finds them again. `tokenize` may be empty if all files are .bin/.idx.
std::vector<TokenFile> open_token_files(std::span<const std::filesystem::path> files,
                                        const Tokenize& tokenize, const TokenizeOptions& options,
                                        const std::filesystem::path& cache_directory,
                                        const std::string& tokenizer_fingerprint);

}  // namespace anabatic::io
