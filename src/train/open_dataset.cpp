// SPDX-License-Identifier: Apache-2.0
#include "train/open_dataset.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "device/topology.h"
#include "io/data/token_files.h"
#include "io/tokenizer/tokenizer.h"
#include "train/model_session.h"
#include "train/tokenize.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

fs::path cache_directory(const RunConfig& run) {
  if (!run.train.output.empty()) return fs::path(run.train.output) / "token_cache";
  return fs::temp_directory_path() / fmt::format("anabatic-tokens-{}", ::getuid());
}

void require_present(const std::vector<fs::path>& paths) {
  std::string missing;
  for (const fs::path& path : paths)
    if (io::indexed_prefix(path).empty() && !fs::is_regular_file(path))
      missing += fmt::format(
          "\n  {}: expected a text or JSONL file, or a .bin/.idx pair; found none", path.string());
  if (!missing.empty()) throw ResourceError(fmt::format("[data] files are missing:{}", missing));
}

int num_threads(const RunConfig& run) {
  if (run.device.threads > 0) return static_cast<int>(run.device.threads);
  return device::num_allowed_cores();
}

}  // namespace

io::Dataset open_dataset(const std::vector<std::string>& files, const RunConfig& run,
                         const model::ModelConfig& config) {
  const std::vector<fs::path> paths(files.begin(), files.end());
  require_present(paths);
  const bool has_text = std::any_of(paths.begin(), paths.end(), [](const fs::path& path) {
    return io::indexed_prefix(path).empty();
  });
  std::optional<io::Tokenizer> tokenizer;
  io::Tokenize callback;
  io::TokenizeOptions options;
  std::string fingerprint;
  if (has_text) {
    const fs::path directory = model_directory(run.model.path);
    tokenizer.emplace(io::Tokenizer::load(directory));
    ANABATIC_REQUIRE(tokenizer->vocabulary_size() <= config.vocab_size,
                     "[data] the tokenizer in {} has {} ids, the model's vocab_size is {}",
                     directory.string(), tokenizer->vocabulary_size(), config.vocab_size);
    callback = tokenize_callback(*tokenizer);
    options = tokenize_options(*tokenizer, run, num_threads(run));
    fingerprint = read_file(directory / "tokenizer.json");
  }
  const auto packing = io::packing_from_string(run.data.packing);
  ANABATIC_CHECK(packing.has_value(), "[data] packing {}", run.data.packing);
  const std::int64_t pad = config.eos_token_ids.empty() ? 0 : config.eos_token_ids.front();
  return io::Dataset(
      io::open_token_files(paths, callback, options, cache_directory(run), fingerprint),
      {.sequence_length = run.data.sequence_length,
       .packing = *packing,
       .vocab_size = config.vocab_size,
       .pad_id = static_cast<std::int32_t>(pad)});
}

std::optional<io::Dataset> open_tokenized(const std::vector<std::string>& files,
                                          const RunConfig& run, const model::ModelConfig& config) {
  const bool are_all = std::none_of(files.begin(), files.end(), [](const std::string& file) {
    return io::indexed_prefix(file).empty();
  });
  if (files.empty() || !are_all) return std::nullopt;
  return open_dataset(files, run, config);
}

}  // namespace anabatic::train
