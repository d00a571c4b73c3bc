// SPDX-License-Identifier: Apache-2.0
// Where a long document is cut into chunks that are tokenised one by one.
//
// Cuts depend only on the document's bytes, so ids are the same for any thread count or buffer
// size. The first cut after each multiple of 1 MiB of document offset is the first *safe place*:
// after a newline that follows a character which is not white space and precedes a letter or a
// number (Unicode categories L*, N*). There the split regexes of GPT-2, Llama 3, Qwen and DeepSeek
// end a piece on the newline whatever follows, so chunk ids equal whole-document ids (unless a
// token of the vocabulary itself spans a newline and a letter). If 15 MiB after the mark hold no
// safe place, the cut is the first end of a run of newlines there, or else the last code point
// boundary; ids may then differ from whole-document ids at that cut.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/byte_source.h"

namespace anabatic::io {

inline constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxChunkBytes = 16 * kChunkBytes;

// `window` holds the document's bytes from `window_begin` (the previous cut, or 0) on; `at_end`
// says that it reaches the document's end. Returns the length of the next chunk, which at the end
// is the whole window when nothing is to be cut; empty when more bytes are needed to tell.
std::optional<std::size_t> next_chunk(std::string_view window, std::int64_t window_begin,
                                      bool at_end);

// A file as one document, chunk by chunk; holds at most two chunks. Offsets count decompressed
// bytes.
class TextChunkReader {
 public:
  explicit TextChunkReader(const std::filesystem::path& path) : source_(path) {}

  // False after the last chunk. An empty file has one empty chunk.
  bool next(std::string& chunk);
  bool at_begin() const { return begin_ == 0; }   // the next chunk is the first
  bool at_end() const { return done_; }           // the last chunk was returned
  std::int64_t offset() const { return begin_; }  // of the next chunk

 private:
  bool fill();

  ByteSource source_;
  std::string buffer_;
  std::int64_t begin_ = 0;  // document offset of buffer_
  bool done_ = false;
};

}  // namespace anabatic::io
