// SPDX-License-Identifier: Apache-2.0
// Turns text and JSON files into PREFIX.bin/.idx, and rows to fine-tune on into these and
// PREFIX.weights, in parallel and in bounded memory.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/data/data_format.h"
#include "io/data/rows.h"
#include "io/document_ends.h"

namespace anabatic::io {

// Appends the ids of one chunk of text to `ids`, without the special tokens of a post-processor;
// TokenizeOptions::ends has those around a document. `begins_document` is false for later chunks of
// a cut document: a tokenizer that marks the start of a text (Metaspace's prefix) must not do so
// there. Called from several threads at once.
using Tokenize = std::function<void(std::string_view chunk, bool begins_document,
                                    std::vector<std::int32_t>& ids)>;

// Appends the ids of one row of JSON, special tokens included, what each weighs as a label, and
// where documents end: one, or two of a pair, the chosen one first. Called from several threads at
// once.
using EncodeRow = std::function<void(OrderedJson row, RowKind kind, std::vector<std::int32_t>& ids,
                                     std::vector<float>& weights, std::vector<std::size_t>& ends)>;

struct TokenizeOptions {
  std::int64_t vocab_size = 0;  // ids must be smaller; also selects uint16 or int32
  DocumentEnds ends{};          // added around each document, once
  int threads = 1;              // affects only the time
  bool is_durable = true;       // the output is on disk once it has its name
  std::string json_field = "text";
  std::int64_t max_line_bytes = std::int64_t{256} << 20;
  // JSON holds rows, and tokens have weights; a text file's are 1.
  bool has_rows = false;
  bool has_pairs = false;  // rows are preferences, and else none is
  EncodeRow encode_row{};
  std::string row_rules{};  // all else that ids and weights of rows follow from
};

struct TokenizeCounts {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;      // including those added around documents
  std::int64_t text_bytes = 0;  // read from the files
  std::string row_kinds{};      // of the files with rows
};

// A text file is one document, whatever it holds; JSON has one a line or value (the string at
// `json_field`; empty lines are skipped). Documents keep the order of files and lines. Long
// documents are cut as io/data/chunks.h says. Errors name file:line, or the file and byte offset,
// and the first one in file order is thrown; no output is left behind then. Of rows the error has
// the first ten problems and their number. All rows of a file are of one kind.
TokenizeCounts tokenize_files(std::span<const DataFile> files, const Tokenize& tokenize,
                              const std::filesystem::path& output_prefix,
                              const TokenizeOptions& options);

}  // namespace anabatic::io
