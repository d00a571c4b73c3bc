// SPDX-License-Identifier: Apache-2.0
// Are all token ids of the data in the vocabulary? Known before a run begins.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "io/data/token_files.h"

namespace anabatic::io {

// InvalidArgument naming file, document, place and id when an id is not in [0, vocab_size). Files
// are read once, at the speed of memory or disk: the smallest and largest id of a .bin above 4 MiB
// is kept in the folder that `cache` gives (none: nowhere) and trusted while device, inode, size,
// both times and the fingerprint of the file are the same. (A content that changes while all of
// these stay is found when its step is read.) Ids of a type that cannot hold a larger one are not
// read, and those of text are known since it was tokenised. Returns how many files were read.
// `cache` is asked only when such a file is there.
std::int64_t check_ids(std::span<const TokenFile> files, std::int64_t vocab_size, int threads,
                       const std::function<std::filesystem::path()>& cache);

// Tokens of which one task finds the range of ids.
inline constexpr std::int64_t kRangeTokens = std::int64_t{1} << 18;
// The range of ids [begin, begin + count) of a file; min > max if there are none.
IdRange id_range(const IndexedFile& file, std::int64_t begin, std::int64_t count);

}  // namespace anabatic::io
