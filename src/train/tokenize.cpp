// SPDX-License-Identifier: Apache-2.0
#include "train/tokenize.h"

#include "base/error.h"
#include "base/log.h"
#include "io/tokenizer/gguf/gguf_tokenizer.h"
#include "io/tokenizer/tokenizer_file.h"
#include "train/model_session.h"
#include "train/rows/row_encoder.h"

namespace anabatic::train {

io::Tokenize tokenize_callback(const io::Tokenizer& tokenizer) {
  return [&tokenizer](std::string_view chunk, bool begins, std::vector<std::int32_t>& ids) {
    if (begins) {
      tokenizer.encode_append(chunk, false, ids);
    } else {
      tokenizer.encode_continuation(chunk, ids);
    }
  };
}

std::optional<io::Tokenizer> find_tokenizer(const std::filesystem::path& folder_or_file) {
  if (!io::find_tokenizer_file(folder_or_file)) return std::nullopt;
  try {
    return io::Tokenizer::load(folder_or_file);
  } catch (const Unsupported&) {
    return std::nullopt;
  }
}

std::filesystem::path tokenizer_folder_or_file(const std::filesystem::path& model) {
  return io::is_gguf(model) ? model : model_directory(model.string());
}

io::SpecialTokens special_tokens_of(const RunConfig& run, const io::Tokenizer* tokenizer,
                                    std::vector<std::int64_t> default_eos) {
  const std::filesystem::path path = run.model.path;
  std::filesystem::path directory = model_directory(run.model.path);
  const bool is_file = path != directory && std::filesystem::exists(path);
  std::string tokenizer_config;
  if (io::is_gguf(path)) {
    const io::GgufFiles files = io::GgufFiles::open(path);
    if (io::has_gguf_tokenizer(files.metadata())) {
      tokenizer_config = io::gguf_tokenizer_config(files.metadata());
      directory = path;  // what is next to it belongs to another model
    }
  }
  std::string config = is_file ? model::config_text(path) : "";
  return io::resolve_special_tokens({.directory = directory,
                                     .config_text = std::move(config),
                                     .tokenizer_config_text = std::move(tokenizer_config),
                                     .tokenizer = tokenizer,
                                     .add_bos = run.data.add_bos,
                                     .append_eos = run.data.append_eos,
                                     .default_eos = std::move(default_eos)});
}

void log_warnings(const io::SpecialTokens& special) {
  for (const std::string& warning : special.warnings) log_warning("[special tokens] {}", warning);
}

io::TokenizeOptions tokenize_options(const io::Tokenizer& tokenizer,
                                     const io::SpecialTokens& special, int threads) {
  io::TokenizeOptions options;
  options.vocab_size = tokenizer.vocabulary_size();
  options.ends = special.document;
  options.threads = threads;
  return options;
}

std::vector<io::DataFile> text_files(const std::vector<std::filesystem::path>& files,
                                     const RunConfig& run, std::string_view place) {
  std::vector<io::DataFile> found =
      io::detect_formats(files, *io::data_format_from_string(run.data.format));
  for (const io::DataFile& file : found)
    ANABATIC_REQUIRE(file.format != io::DataFormat::kTokens,
                     "[tokenize] {}: {}: expected text or JSON, got token ids of a .bin/.idx pair",
                     place, file.path.string());
  for (const io::DataFile& file : found)
    log_info("data: {}: {}", file.path.string(), io::describe(file));
  return found;
}

io::TokenizeCounts tokenize_files(const std::vector<std::filesystem::path>& files,
                                  const std::filesystem::path& output_prefix, const RunConfig& run,
                                  std::string_view place) {
  ANABATIC_REQUIRE(!run.model.path.empty(),
                   "[tokenize] expected model.path, which holds tokenizer.json, got none");
  const io::Tokenizer tokenizer = io::Tokenizer::load(run.model.path);
  const io::SpecialTokens special = special_tokens_of(run, &tokenizer);
  log_warnings(special);
  io::TokenizeOptions options = tokenize_options(tokenizer, special, num_threads_of(run));
  std::shared_ptr<const RowEncoder> rows;
  if (trains_on_rows(run)) rows = add_rows(options, run, tokenizer, special);
  const io::TokenizeCounts counts = io::tokenize_files(
      text_files(files, run, place), tokenize_callback(tokenizer), output_prefix, options);
  if (rows) rows->log_counts();
  return counts;
}

}  // namespace anabatic::train
