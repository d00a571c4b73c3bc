// SPDX-License-Identifier: Apache-2.0
// The files a user names as data, as token files: .bin/.idx are opened, text and JSON tokenised
// once.
#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/data/data_format.h"
#include "io/data/indexed_file.h"
#include "io/data/tokenize_files.h"

namespace anabatic::io {

struct TokenFile {
  DataFile source;
  IndexedFile tokens;
};

// Text and JSON go to cache_directory/NAME-HASH.bin/.idx (made if needed). The hash covers path,
// size and time of change of the file, the options that change ids, and `tokenizer_fingerprint`, so
// a later run finds them again. `tokenize` may be empty if all files are .bin/.idx.
std::vector<TokenFile> open_token_files(std::span<const DataFile> files, const Tokenize& tokenize,
                                        const TokenizeOptions& options,
                                        const std::filesystem::path& cache_directory,
                                        const std::string& tokenizer_fingerprint);

}  // namespace anabatic::io
