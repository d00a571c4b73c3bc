// SPDX-License-Identifier: Apache-2.0
// Training samples of a fixed length, cut from token files.
//
// The stream is all documents of all files in order. Three packings:
//   isolated      documents fill samples in order and are split at L. Every token is in one sample;
//   the
//                 last sample is padded (pad tokens form a document of their own, labels ignored),
//                 in training and validation. A token's label is the next token of its document,
//                 even when that one lies in the next sample; the last token of a document has
//                 none. Attention stays inside a document, and positions restart with each piece of
//                 one.
//   concatenated  sample i reads stream tokens i*L .. i*L+L: L inputs and, shifted by one, L
//   labels.
//                 Attention and positions span the sample. floor((N-1)/L) samples.
//   best_fit      documents are rows, which are truncated, never split: a sample holds several of
//   them
//                 as isolated does, and padding. Rows without a trained token are left out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "io/data/reference_file.h"
#include "io/data/row_packing.h"
#include "io/data/token_files.h"

namespace anabatic::io {

enum class Packing { kIsolated, kConcatenated, kBestFit };
std::optional<Packing> packing_from_string(std::string_view text);

inline constexpr std::int32_t kIgnoredLabel = -100, kNoDocument = -1;

struct DatasetOptions {
  std::int64_t sequence_length = 512;
  Packing packing = Packing::kIsolated;
  std::int64_t vocab_size = 0;
  std::int32_t pad_id = 0;
  bool with_weights = false;  // SampleRows has weights: those of files, and 1
  RowOptions rows{};          // of best_fit
  std::uint64_t seed = 0;     // of the same
};

// One sample's rows of a micro-batch, each [L]. Row i attends to rows [key_begin[i], key_end[i]).
struct SampleRows {
  std::span<std::int32_t> tokens, labels, positions, key_begin, key_end;
  // The micro-batch's row where the token's document begins in this sample; kNoDocument: padding.
  std::span<std::int32_t> documents;
  std::span<float> weights{};  // of labels; with DatasetOptions::with_weights
  // Of pairs: the number of the completion that the label belongs to, else -1, and the label's
  // log-probability by the reference.
  std::span<std::int32_t> completions{};
  std::span<float> reference{};
  std::int32_t first_completion = 0;  // number of the sample's first one
};

// What one sample holds.
struct SampleCounts {
  std::int64_t labels = 0;     // that are not ignored, of a weight other than 0
  std::int64_t tokens = 0;     // that are not padding
  std::int64_t documents = 0;  // pieces of documents; of pairs, completions
  double weight = 0;           // of the labels, where there are weights
};

// Reused between reads, so that reading allocates nothing after the first.
struct SampleScratch {
  std::vector<std::int64_t> ids;
  std::vector<std::byte> raw;
  std::vector<float> weights, reference;
};

struct TokenSource {
  std::size_t file = 0;       // index in the list of files
  std::int64_t document = 0;  // in that file
  std::int64_t offset = 0;    // token in that document
  bool operator==(const TokenSource&) const = default;
};

// Const members are thread-safe.
class Dataset {
 public:
  // InvalidArgument, naming the numbers, if the files hold less than one sample.
  Dataset(std::vector<TokenFile> files, const DatasetOptions& options);

  std::int64_t num_samples() const { return num_samples_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::int64_t num_documents() const;
  const DatasetOptions& options() const { return options_; }
  std::span<const TokenFile> files() const { return files_; }
  bool has_weights() const { return options_.with_weights; }
  bool has_pairs() const { return options_.rows.are_pairs; }
  // Log-probabilities of tokens by a reference, of every file; 0 before. Of pairs alone.
  void set_reference(std::vector<ReferenceFile> reference);
  // The rows of a sample of best_fit, in their order.
  std::span<const Row> rows_of(std::int64_t sample) const;
  const RowCounts& row_counts() const { return row_counts_; }  // of best_fit

  // Fills the rows of one sample, which start at row `first_row` of the micro-batch, and returns
  // what it holds. InvalidArgument naming file, document, offset and id for an id that is not below
  // vocab_size: what `check_ids` finds before; also for rows that are not of [L].
  SampleCounts read(std::int64_t sample, std::int32_t first_row, const SampleRows& rows,
                    SampleScratch& scratch) const;
  // A sample of padding only: fills up a micro-batch.
  void read_padding(std::int32_t first_row, const SampleRows& rows) const;

  // Where the input token at this place of a sample comes from; empty for padding.
  std::optional<TokenSource> locate(std::int64_t sample, std::int64_t position) const;

 private:
  void pack_best_fit();
  TokenSource source_in_file(std::size_t file, std::int64_t position) const;
  TokenSource source_of(std::int64_t stream_position) const;
  std::size_t file_of(std::int64_t stream_position) const;
  void read_stream(std::int64_t begin, std::int64_t count, SampleScratch& scratch) const;
  // `count` tokens of a file to place `at` of the scratch.
  void read_file(std::size_t file, std::int64_t begin, std::int64_t count, std::int64_t at,
                 SampleScratch& scratch) const;
  // Calls body(i, piece, end) for the tokens i of a sample from stream position `begin` on: where
  // in the sample their document begins, and where in the stream it ends.
  template <class Body>
  void for_tokens(std::int64_t begin, std::int64_t count, Body&& body) const;
  // Row i of a sample, in a piece of a document that began at row `piece`.
  void fill_row(std::int64_t i, std::int64_t piece, bool has_label, std::int32_t first_row,
                const SampleRows& rows, const SampleScratch& scratch, SampleCounts& counts) const;
  // After fill_row, where data are pairs: a label outside of completions is none.
  void fill_completion(std::int64_t i, const SampleRows& rows, const SampleScratch& scratch,
                       const SampleCounts& counts) const;
  SampleCounts fill_isolated(std::int64_t begin, std::int32_t first_row, const SampleRows& rows,
                             const SampleScratch& scratch) const;
  SampleCounts fill_best_fit(std::int64_t sample, std::int32_t first_row, const SampleRows& rows,
                             SampleScratch& scratch) const;
  SampleCounts fill_concatenated(std::int64_t begin, std::int32_t first_row, const SampleRows& rows,
                                 std::span<const std::int64_t> ids) const;
  void require_room(const SampleRows& rows) const;
  void pad(std::int64_t first, std::int32_t first_row, const SampleRows& rows) const;

  std::vector<TokenFile> files_;
  std::vector<std::int64_t> file_begins_;  // stream position of each file, then num_tokens_
  DatasetOptions options_;
  std::int64_t num_tokens_ = 0;
  std::int64_t num_samples_ = 0;
  std::vector<Row> rows_;  // of best_fit, by sample
  std::vector<std::int64_t> sample_begins_;
  RowCounts row_counts_;
  std::vector<ReferenceFile> reference_;  // of pairs: none yet, or of every file
};

}  // namespace anabatic::io
