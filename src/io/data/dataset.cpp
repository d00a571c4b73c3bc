// SPDX-License-Identifier: Apache-2.0
#include "io/data/dataset.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "base/rounding.h"

namespace anabatic::io {

std::optional<Packing> packing_from_string(std::string_view text) {
  if (text == "isolated") return Packing::kIsolated;
  if (text == "concatenated") return Packing::kConcatenated;
  if (text == "best_fit") return Packing::kBestFit;
  return std::nullopt;
}

Dataset::Dataset(std::vector<TokenFile> files, const DatasetOptions& options)
    : files_(std::move(files)), options_(options) {
  const std::int64_t length = options_.sequence_length;
  ANABATIC_REQUIRE(length > 0 && length < std::numeric_limits<std::int32_t>::max(),
                   "[data] expected a sequence length above 0, got {}", length);
  ANABATIC_REQUIRE(options_.vocab_size > 0, "[data] expected a vocabulary size above 0, got {}",
                   options_.vocab_size);
  ANABATIC_REQUIRE(options_.pad_id >= 0 && options_.pad_id < options_.vocab_size,
                   "[data] expected a padding id in [0, {}), got {}", options_.vocab_size,
                   options_.pad_id);
  ANABATIC_REQUIRE(!options_.with_weights || options_.packing != Packing::kConcatenated,
                   "[data] expected packing best_fit or isolated for rows with weights, got "
                   "concatenated");
  for (const TokenFile& file : files_) {
    file_begins_.push_back(num_tokens_);
    num_tokens_ += file.tokens.num_tokens();
  }
  file_begins_.push_back(num_tokens_);
  if (options_.packing == Packing::kBestFit) {
    pack_best_fit();
    return;
  }
  if (options_.packing == Packing::kIsolated) {
    num_samples_ = ceil_div(num_tokens_, length);
  } else {
    num_samples_ = num_tokens_ > 0 ? (num_tokens_ - 1) / length : 0;
  }
  const bool is_isolated = options_.packing == Packing::kIsolated;
  ANABATIC_REQUIRE(num_samples_ > 0,
                   "[data] expected at least one sample: {} tokens for sequence_length {} with {} "
                   "packing, got {} tokens in {} files",
                   is_isolated ? 1 : length + 1, length, is_isolated ? "isolated" : "concatenated",
                   num_tokens_, files_.size());
}

void Dataset::pack_best_fit() {
  const std::int64_t length = options_.sequence_length;
  const std::int64_t most = length / options_.rows.group();
  if (options_.rows.max_length == 0) options_.rows.max_length = most;
  ANABATIC_REQUIRE(most > 0 && options_.rows.max_length <= most,
                   "[data] expected rows of at most {} tokens, {}, got {}", most,
                   has_pairs() ? "half of a sample, which holds both of a pair" : "a sample's",
                   options_.rows.max_length);
  rows_ = choose_rows(files_, options_.rows, row_counts_);
  ANABATIC_REQUIRE(!rows_.empty(),
                   "[data] expected a row with a trained token, got {} rows in {} files: {} were "
                   "too long, {} have no trained token among those that fit, which are {} "
                   "(data.max_length, data.sequence_length)",
                   row_counts_.rows, files_.size(), row_counts_.dropped_for_length,
                   row_counts_.dropped_untrained, options_.rows.max_length);
  sample_begins_ = pack_rows(rows_, length, options_.seed, options_.rows.group());
  num_samples_ = std::ssize(sample_begins_) - 1;
}

void Dataset::set_reference(std::vector<ReferenceFile> reference) {
  ANABATIC_CHECK(has_pairs() && reference.size() == files_.size(),
                 "[data] {} files, references of {}", files_.size(), reference.size());
  for (std::size_t file = 0; file < files_.size(); ++file)
    ANABATIC_CHECK(reference[file].num_tokens() == files_[file].tokens.num_tokens(),
                   "[data] {} tokens, references of {}", files_[file].tokens.num_tokens(),
                   reference[file].num_tokens());
  reference_ = std::move(reference);
}

std::span<const Row> Dataset::rows_of(std::int64_t sample) const {
  const auto begin = static_cast<std::size_t>(sample_begins_[static_cast<std::size_t>(sample)]),
             end = static_cast<std::size_t>(sample_begins_[static_cast<std::size_t>(sample) + 1]);
  return std::span(rows_).subspan(begin, end - begin);
}

std::int64_t Dataset::num_documents() const {
  std::int64_t count = 0;
  for (const TokenFile& file : files_) count += file.tokens.num_documents();
  return count;
}

std::size_t Dataset::file_of(std::int64_t stream_position) const {
  // The last file that begins at or before the position; empty files begin where the next one does.
  const auto after = std::upper_bound(file_begins_.begin(), file_begins_.end(), stream_position);
  return static_cast<std::size_t>(after - file_begins_.begin()) - 1;
}

TokenSource Dataset::source_in_file(std::size_t file, std::int64_t position) const {
  const IndexedFile& tokens = files_[file].tokens;
  const std::int64_t document = tokens.document_of(position);
  return {file, document, position - tokens.document_begin(document)};
}

TokenSource Dataset::source_of(std::int64_t stream_position) const {
  const std::size_t file = file_of(stream_position);
  return source_in_file(file, stream_position - file_begins_[file]);
}

std::optional<TokenSource> Dataset::locate(std::int64_t sample, std::int64_t position) const {
  const std::int64_t length = options_.sequence_length;
  ANABATIC_REQUIRE(sample >= 0 && sample < num_samples_ && position >= 0 && position < length,
                   "[data] expected a place in {} samples of {} tokens, got sample {}, position {}",
                   num_samples_, length, sample, position);
  if (options_.packing == Packing::kBestFit) {
    std::int64_t in_row = position;
    for (std::int64_t i = sample_begins_[static_cast<std::size_t>(sample)];
         i < sample_begins_[static_cast<std::size_t>(sample) + 1]; ++i) {
      const Row& row = rows_[static_cast<std::size_t>(i)];
      if (in_row < row.length)
        return source_in_file(static_cast<std::size_t>(row.file), row.begin + in_row);
      in_row -= row.length;
    }
    return std::nullopt;
  }
  const std::int64_t stream_position = sample * length + position;
  if (stream_position >= num_tokens_) return std::nullopt;
  return source_of(stream_position);
}

namespace {

void resize(SampleScratch& scratch, std::int64_t count, bool with_weights,
            bool with_reference = false) {
  scratch.reference.resize(with_reference ? static_cast<std::size_t>(count) : 0);
  scratch.ids.resize(static_cast<std::size_t>(count));
  scratch.raw.resize(static_cast<std::size_t>(count) * sizeof(std::int64_t));
  if (with_weights) scratch.weights.resize(static_cast<std::size_t>(count));
}

}  // namespace

void Dataset::read_stream(std::int64_t begin, std::int64_t count, SampleScratch& scratch) const {
  resize(scratch, count, has_weights());
  std::int64_t done = 0;
  for (std::size_t file = file_of(begin); done < count; ++file) {
    const std::int64_t first = begin + done - file_begins_[file];
    const std::int64_t part = std::min(count - done, files_[file].tokens.num_tokens() - first);
    read_file(file, first, part, done, scratch);
    done += part;
  }
}

void Dataset::read_file(std::size_t file, std::int64_t begin, std::int64_t count, std::int64_t at,
                        SampleScratch& scratch) const {
  const auto part = [&](auto& array) {
    return std::span(array).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count));
  };
  const std::span<std::int64_t> ids = part(scratch.ids);
  files_[file].tokens.read(begin, ids, scratch.raw);
  if (has_weights()) {
    const std::span<float> weights = part(scratch.weights);
    if (files_[file].weights)
      files_[file].weights->read(begin, weights);
    else
      std::ranges::fill(weights, 1.0f);
  }
  if (!scratch.reference.empty()) {
    const std::span<float> reference = part(scratch.reference);
    if (reference_.empty())
      std::ranges::fill(reference, 0.0f);
    else
      reference_[file].read(begin, reference);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t id = ids[static_cast<std::size_t>(i)];
    if (id >= 0 && id < options_.vocab_size) continue;
    const TokenSource source = source_in_file(file, begin + i);
    throw InvalidArgument(fmt::format(
        "[data] {}, document {}, token {}: expected an id in [0, {}) (the model's vocabulary), got "
        "{}; was the data made with another tokenizer?",
        files_[source.file].source.path.string(), source.document, source.offset,
        options_.vocab_size, id));
  }
}

void Dataset::pad(std::int64_t first, std::int32_t first_row, const SampleRows& rows) const {
  for (std::int64_t i = first; i < options_.sequence_length; ++i) {
    const auto place = static_cast<std::size_t>(i);
    rows.tokens[place] = options_.pad_id;
    rows.labels[place] = kIgnoredLabel;
    rows.positions[place] = static_cast<std::int32_t>(i - first);
    rows.key_begin[place] = first_row + static_cast<std::int32_t>(first);
    rows.key_end[place] = first_row + static_cast<std::int32_t>(i) + 1;
    rows.documents[place] = kNoDocument;
    if (has_weights()) rows.weights[place] = 0;
    if (!has_pairs()) continue;
    rows.completions[place] = -1;
    rows.reference[place] = 0;
  }
}

void Dataset::require_room(const SampleRows& rows) const {
  const auto length = static_cast<std::size_t>(options_.sequence_length);
  for (const auto& row :
       {rows.tokens, rows.labels, rows.positions, rows.key_begin, rows.key_end, rows.documents})
    ANABATIC_REQUIRE(row.size() == length, "[data] expected rows of {} tokens, got {}", length,
                     row.size());
  ANABATIC_REQUIRE(rows.weights.size() == (has_weights() ? length : 0),
                   "[data] expected {} weights, got {}", has_weights() ? length : 0,
                   rows.weights.size());
  const std::size_t of_pairs = has_pairs() ? length : 0;
  ANABATIC_REQUIRE(rows.completions.size() == of_pairs && rows.reference.size() == of_pairs,
                   "[data] expected completions and references of {} tokens, got {} and {}",
                   of_pairs, rows.completions.size(), rows.reference.size());
}

void Dataset::read_padding(std::int32_t first_row, const SampleRows& rows) const {
  require_room(rows);
  pad(0, first_row, rows);
}

template <class Body>
void Dataset::for_tokens(std::int64_t begin, std::int64_t count, Body&& body) const {
  std::size_t file = file_of(begin);
  std::int64_t document = files_[file].tokens.document_of(begin - file_begins_[file]);
  std::array<std::int64_t, 64> ends;  // in the file, of documents first_end, first_end + 1, ...
  std::int64_t first_end = 0, num_ends = 0;
  const auto end_of_document = [&] {
    if (document >= first_end + num_ends) {
      const IndexedFile& tokens = files_[file].tokens;
      first_end = document;
      num_ends = std::min<std::int64_t>(std::ssize(ends), tokens.num_documents() - document);
      tokens.document_begins(document + 1,
                             std::span(ends).first(static_cast<std::size_t>(num_ends)));
    }
    return file_begins_[file] + ends[static_cast<std::size_t>(document - first_end)];
  };
  std::int64_t end = end_of_document();
  std::int64_t piece = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    while (begin + i >= end) {
      ++document;
      while (document == files_[file].tokens.num_documents()) {
        ++file;
        document = first_end = num_ends = 0;
      }
      end = end_of_document();
      piece = i;
    }
    body(i, piece, end);
  }
}

void Dataset::fill_row(std::int64_t i, std::int64_t piece, bool has_label, std::int32_t first_row,
                       const SampleRows& rows, const SampleScratch& scratch,
                       SampleCounts& counts) const {
  const auto place = static_cast<std::size_t>(i);
  rows.tokens[place] = static_cast<std::int32_t>(scratch.ids[place]);
  rows.labels[place] =
      has_label ? static_cast<std::int32_t>(scratch.ids[place + 1]) : kIgnoredLabel;
  rows.positions[place] = static_cast<std::int32_t>(i - piece);
  rows.key_begin[place] = first_row + static_cast<std::int32_t>(piece);
  rows.key_end[place] = first_row + static_cast<std::int32_t>(i) + 1;
  rows.documents[place] = first_row + static_cast<std::int32_t>(piece);
  counts.documents += i == piece ? 1 : 0;
  bool counts_as_label = has_label;
  if (has_weights()) {
    const float weight = has_label ? scratch.weights[place + 1] : 0.0f;
    rows.weights[place] = weight;
    counts.weight += static_cast<double>(weight);
    counts_as_label = weight != 0;
  }
  counts.labels += counts_as_label ? 1 : 0;
  if (has_pairs()) fill_completion(i, rows, scratch, counts);
}

void Dataset::fill_completion(std::int64_t i, const SampleRows& rows, const SampleScratch& scratch,
                              const SampleCounts& counts) const {
  const auto place = static_cast<std::size_t>(i);
  const bool is_completion = rows.weights[place] != 0;
  if (!is_completion) rows.labels[place] = kIgnoredLabel;
  rows.completions[place] =
      is_completion ? rows.first_completion + static_cast<std::int32_t>(counts.documents) - 1 : -1;
  rows.reference[place] = is_completion ? scratch.reference[place + 1] : 0.0f;
}

SampleCounts Dataset::fill_isolated(std::int64_t begin, std::int32_t first_row,
                                    const SampleRows& rows, const SampleScratch& scratch) const {
  SampleCounts counts{.tokens = std::min(options_.sequence_length, num_tokens_ - begin)};
  for_tokens(begin, counts.tokens, [&](std::int64_t i, std::int64_t piece, std::int64_t end) {
    fill_row(i, piece, begin + i + 1 < end, first_row, rows, scratch, counts);
  });
  pad(counts.tokens, first_row, rows);
  return counts;
}

SampleCounts Dataset::fill_best_fit(std::int64_t sample, std::int32_t first_row,
                                    const SampleRows& rows, SampleScratch& scratch) const {
  resize(scratch, options_.sequence_length, has_weights(), has_pairs());
  SampleCounts counts;
  for (const Row& row : rows_of(sample)) {
    const std::int64_t piece = counts.tokens;
    read_file(static_cast<std::size_t>(row.file), row.begin, row.length, piece, scratch);
    for (std::int64_t i = piece; i < piece + row.length; ++i)
      fill_row(i, piece, i + 1 < piece + row.length, first_row, rows, scratch, counts);
    counts.tokens += row.length;
  }
  pad(counts.tokens, first_row, rows);
  return counts;
}

SampleCounts Dataset::fill_concatenated(std::int64_t begin, std::int32_t first_row,
                                        const SampleRows& rows,
                                        std::span<const std::int64_t> ids) const {
  const std::int64_t length = options_.sequence_length;
  SampleCounts counts{.labels = length, .tokens = length};
  for_tokens(begin, length, [&](std::int64_t i, std::int64_t piece, std::int64_t) {
    const auto place = static_cast<std::size_t>(i);
    rows.tokens[place] = static_cast<std::int32_t>(ids[place]);
    rows.labels[place] = static_cast<std::int32_t>(ids[place + 1]);
    rows.positions[place] = static_cast<std::int32_t>(i);
    rows.key_begin[place] = first_row;
    rows.key_end[place] = first_row + static_cast<std::int32_t>(i) + 1;
    rows.documents[place] = first_row + static_cast<std::int32_t>(piece);
    counts.documents += i == piece ? 1 : 0;
  });
  return counts;
}

SampleCounts Dataset::read(std::int64_t sample, std::int32_t first_row, const SampleRows& rows,
                           SampleScratch& scratch) const {
  const std::int64_t length = options_.sequence_length;
  ANABATIC_REQUIRE(sample >= 0 && sample < num_samples_,
                   "[data] expected a sample in [0, {}), got {}", num_samples_, sample);
  require_room(rows);
  if (options_.packing == Packing::kBestFit) return fill_best_fit(sample, first_row, rows, scratch);
  const std::int64_t begin = sample * length;
  read_stream(begin, std::min(length + 1, num_tokens_ - begin), scratch);
  return options_.packing == Packing::kIsolated
             ? fill_isolated(begin, first_row, rows, scratch)
             : fill_concatenated(begin, first_row, rows, scratch.ids);
}

}  // namespace anabatic::io
