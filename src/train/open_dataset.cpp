// SPDX-License-Identifier: Apache-2.0
#include "train/open_dataset.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/rounding.h"
#include "base/text.h"
#include "device/memory.h"
#include "io/cache_directory.h"
#include "io/data/check_ids.h"
#include "io/data/fingerprint.h"
#include "io/data/token_files.h"
#include "io/gguf.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/tokenizer_file.h"
#include "train/model_session.h"
#include "train/rows/row_encoder.h"
#include "train/tokenize.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

// The cache of token ids and of what is known about .bin files.
std::shared_ptr<const io::CacheDirectory> cache_of(const RunConfig& run) {
  if (run.data.cache.empty()) return io::CacheDirectory::of_user("tokens");
  if (run.data.cache == "none") return io::CacheDirectory::temporary();
  return io::CacheDirectory::at(run.data.cache, "data.cache");
}

io::DataFormat format_of(const RunConfig& run) {
  const auto format = io::data_format_from_string(run.data.format);
  ANABATIC_CHECK(format.has_value(), "[data] format {}", run.data.format);
  return *format;
}

bool are_text(const std::vector<std::string>& files) {
  return !std::ranges::all_of(
      files, [](const std::string& file) { return io::indexed_pair(file).has_value(); });
}

// Logs the format detected for each file; one line for each format if there are many files.
void log_sources(const std::vector<io::TokenFile>& files) {
  constexpr std::size_t kMostLines = 8;
  struct Sum {
    std::size_t files = 0;
    std::int64_t documents = 0, tokens = 0;
  };
  std::map<std::string, Sum> sums;
  for (const io::TokenFile& file : files) {
    std::string format = io::describe(file.source);
    if (!file.row_kind.empty()) format += fmt::format(", rows of {}", file.row_kind);
    const std::int64_t documents = file.tokens.num_documents(), tokens = file.tokens.num_tokens();
    if (files.size() <= kMostLines)
      log_info("data: {}: {}, {} documents, {} tokens", file.source.path.string(), format,
               documents, tokens);
    Sum& sum = sums[format];
    ++sum.files;
    sum.documents += documents;
    sum.tokens += tokens;
  }
  if (files.size() <= kMostLines) return;
  for (const auto& [format, sum] : sums)
    log_info("data: {} files: {}, {} documents, {} tokens", sum.files, format, sum.documents,
             sum.tokens);
}

// How rows fill the samples, and what became of the others.
void log_rows(const io::Dataset& dataset) {
  const io::RowCounts& counts = dataset.row_counts();
  const double room = static_cast<double>(dataset.num_samples()) *
                      static_cast<double>(dataset.options().sequence_length);
  // A pair is two.
  const char* const what = dataset.has_pairs() ? "completions" : "rows";
  log_info("data: {} of {} {} in {} samples, {:.1f} % full; {} of {} tokens are trained",
           counts.rows - counts.dropped_for_length - counts.dropped_untrained, counts.rows, what,
           dataset.num_samples(), 100 * static_cast<double>(counts.tokens) / room, counts.trained,
           counts.tokens);
  if (counts.truncated + counts.dropped_for_length > 0)
    log_warning(
        "[data] of {} {}, {} were shortened and {} left out, for they have more than {} "
        "tokens (data.max_length)",
        counts.rows, what, counts.truncated, counts.dropped_for_length,
        dataset.options().rows.max_length);
  if (counts.dropped_untrained > 0)
    log_warning("[data] {} of {} {} have no trained token, and are left out",
                counts.dropped_untrained, counts.rows, what);
}

}  // namespace

io::Dataset open_dataset(const std::vector<std::string>& files, const RunConfig& run,
                         const model::ModelConfig& config) {
  const std::vector<fs::path> paths(files.begin(), files.end());
  const std::vector<io::DataFile> sources = io::detect_formats(paths, format_of(run));
  const bool has_text = std::ranges::any_of(
      sources, [](const io::DataFile& file) { return file.format != io::DataFormat::kTokens; });
  std::optional<io::Tokenizer> tokenizer;
  io::Tokenize callback;
  io::TokenizeOptions options;
  std::string fingerprint;
  std::shared_ptr<const io::CacheDirectory> cache;
  std::shared_ptr<const RowEncoder> rows;
  if (has_text) {
    const fs::path directory = tokenizer_folder_or_file(run.model.path);
    tokenizer.emplace(io::Tokenizer::load(directory));
    ANABATIC_REQUIRE(tokenizer->vocabulary_size() <= config.spec.vocab_size,
                     "[data] the tokenizer in {} has {} ids, the model's vocab_size is {}",
                     directory.string(), tokenizer->vocabulary_size(), config.spec.vocab_size);
    callback = tokenize_callback(*tokenizer);
    const io::SpecialTokens special = special_tokens_of(run, &*tokenizer, config.eos_token_ids);
    options = tokenize_options(*tokenizer, special, num_threads_of(run));
    if (trains_on_rows(run)) rows = add_rows(options, run, *tokenizer, special);
    const auto file = io::find_tokenizer_file(directory);
    ANABATIC_CHECK(file.has_value(), "[data] {} lost its tokenizer", directory.string());
    fingerprint =
        io::content_hash(io::is_gguf(*file) ? io::tokenizer_json(*file) : read_file(*file));
    cache = cache_of(run);
  }
  options.has_rows = trains_on_rows(run);
  options.has_pairs = trains_on_pairs(run);
  const auto packing = io::packing_from_string(packing_of(run));
  const auto truncation = io::truncation_from_string(run.data.truncation);
  ANABATIC_CHECK(packing && truncation, "[data] packing {}, truncation {}", run.data.packing,
                 run.data.truncation);
  const std::int64_t pad = config.eos_token_ids.empty() ? 0 : config.eos_token_ids.front();
  std::vector<io::TokenFile> token_files =
      io::open_token_files(sources, callback, options, cache, fingerprint);
  if (rows) rows->log_counts();
  log_sources(token_files);
  io::check_ids(token_files, config.spec.vocab_size, num_threads_of(run), [&] {
    if (cache == nullptr && run.data.cache != "none") cache = cache_of(run);
    return cache == nullptr || cache->is_temporary() ? fs::path() : cache->path();
  });
  device::trim_heap();  // of what was read
  ANABATIC_REQUIRE(
      *packing == io::Packing::kBestFit || (run.data.max_length == RunConfig::Data::kWholeSample &&
                                            *truncation == io::Truncation::kKeepStart),
      "[data] data.max_length and data.truncation: expected data.packing: best_fit, "
      "which shortens rows, got {}",
      packing_of(run));
  io::Dataset dataset(std::move(token_files),
                      {.sequence_length = run.data.sequence_length,
                       .packing = *packing,
                       .vocab_size = config.spec.vocab_size,
                       .pad_id = static_cast<std::int32_t>(pad),
                       .with_weights = trains_on_rows(run),
                       .rows = {run.data.max_length, *truncation, trains_on_pairs(run)},
                       .seed = static_cast<std::uint64_t>(run.train.seed)});
  if (*packing == io::Packing::kBestFit) log_rows(dataset);
  return dataset;
}

std::optional<io::Dataset> open_tokenized(const std::vector<std::string>& files,
                                          const RunConfig& run, const model::ModelConfig& config) {
  const io::DataFormat format = format_of(run);
  const bool may_be_all = format == io::DataFormat::kAuto || format == io::DataFormat::kTokens;
  if (files.empty() || !may_be_all || are_text(files)) return std::nullopt;
  return open_dataset(files, run, config);
}

void warn_of_special_tokens(const RunConfig& run, const model::ModelConfig& config) {
  if (!are_text(run.data.validation)) return;
  if (const auto tokenizer = find_tokenizer(tokenizer_folder_or_file(run.model.path)))
    log_warnings(special_tokens_of(run, &*tokenizer, config.eos_token_ids));
}

void check_sample_length(const RunConfig& run, const model::ModelConfig& config) {
  const std::int64_t longest = config.max_position_embeddings,
                     learned = config.spec.learned_positions;
  ANABATIC_REQUIRE(learned == 0 || run.data.sequence_length <= learned,
                   "[data] data.sequence_length: expected at most {}, the positions that {} has "
                   "learned, got {}",
                   learned, config.model_type, run.data.sequence_length);
  if (const auto& blocks = config.key_blocks; blocks && blocks->mask) {
    const std::int64_t wanted = ceil_div(run.data.sequence_length, blocks->size);
    ANABATIC_REQUIRE(blocks->mask->blocks >= wanted,
                     "[data] attention.blocks.file: expected at least {} blocks for "
                     "data.sequence_length: {} in blocks of {}, got {}",
                     wanted, run.data.sequence_length, blocks->size, blocks->mask->blocks);
  }
  if (longest > 0 && run.data.sequence_length > longest)
    log_warning("[data] data.sequence_length {} goes beyond the model's max_position_embeddings {}",
                run.data.sequence_length, longest);
}

}  // namespace anabatic::train
