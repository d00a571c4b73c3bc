// SPDX-License-Identifier: Apache-2.0
// Trains a byte-level BPE tokenizer (GPT-2's pre-tokenization) from text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace anabatic::io {

struct TrainOptions {
  std::int32_t vocab_size = 32000;  // special tokens and the 256 bytes included
  int threads = 0;                  // 0: all that this process may use
  // They get the ids from 0. The first is written as eos, bos and unknown token.
  std::vector<std::string> special_tokens{"<|endoftext|>"};
};

struct TrainedBpe {
  std::vector<std::string> tokens;                            // by id, as byte-level symbols
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;  // by rank
};

// Puts the next text into its argument; false when there is none. Called by one thread at a time.
// Words do not cross texts.
using NextText = std::function<bool(std::string&)>;

// The contents of text files, cut into parts of about a mebibyte where the pre-tokenization of the
// whole would cut as well. InvalidArgument names file and byte offset if a file is not UTF-8.
NextText read_texts(std::vector<std::filesystem::path> files);

// Likewise, of files that `open` reads: fills the bytes, fewer only at the end of the text.
using ReadText = std::function<std::size_t(std::span<char> bytes)>;
using OpenText = std::function<ReadText(const std::filesystem::path& file)>;
NextText read_texts(std::vector<std::filesystem::path> files, const OpenText& open);

// The merges are those of Hugging Face's BpeTrainer (highest count first, then the pair of smaller
// ids), whatever the number of threads. Fewer tokens than asked if the text has no more pairs.
TrainedBpe train_bpe(const TrainOptions& options, const NextText& next_text);

// Trains and writes `folder`/tokenizer.json and tokenizer_config.json, which Hugging Face's
// AutoTokenizer loads.
void train_bpe(const TrainOptions& options, std::span<const std::filesystem::path> files,
               const std::filesystem::path& folder);
void write_tokenizer(const TrainOptions& options, const TrainedBpe& trained,
                     const std::filesystem::path& folder);

}  // namespace anabatic::io
