// SPDX-License-Identifier: Apache-2.0
#include "train/tokenize.h"

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "train/model_session.h"

namespace anabatic::train {
namespace {

std::int32_t eos_of(const io::Tokenizer& tokenizer, const RunConfig& run) {
  if (const auto eos = tokenizer.eos_id()) return *eos;
  const std::vector<std::int64_t> ids =
      read_eos_ids(model_directory(run.model.path) / "config.json");
  ANABATIC_REQUIRE(!ids.empty(),
                   "[tokenize] {}: expected an eos_token in tokenizer_config.json or an "
                   "eos_token_id in config.json, found neither; data.append_eos: false joins "
                   "documents without one",
                   run.model.path);
  ANABATIC_REQUIRE(ids.front() >= 0 && ids.front() < tokenizer.vocabulary_size(),
                   "[tokenize] {}: expected an eos_token_id below {}, the tokenizer's size, got {}",
                   run.model.path, tokenizer.vocabulary_size(), ids.front());
  return static_cast<std::int32_t>(ids.front());
}

}  // namespace

std::vector<std::int64_t> read_eos_ids(const std::filesystem::path& json_file) {
  if (!std::filesystem::exists(json_file)) return {};
  const auto json = try_parse_json(read_file(json_file, std::int64_t{1} << 24));
  ANABATIC_REQUIRE(json.is_object(), "[config] expected a JSON object in {}", json_file.string());
  const auto found = json.find("eos_token_id");
  if (found == json.end() || found->is_null()) return {};
  std::vector<std::int64_t> ids;
  const auto add = [&](const nlohmann::json& id) {
    ANABATIC_REQUIRE(id.is_number_integer(), "[config] {}: eos_token_id: expected integers, got {}",
                     json_file.string(), show_json(id));
    ids.push_back(id.get<std::int64_t>());
  };
  if (found->is_array()) {
    for (const auto& id : *found) add(id);
  } else {
    add(*found);
  }
  return ids;
}

io::Tokenize tokenize_callback(const io::Tokenizer& tokenizer) {
  return [&tokenizer](std::string_view chunk, bool begins, std::vector<std::int32_t>& ids) {
    if (begins) {
      tokenizer.encode_append(chunk, false, ids);
    } else {
      tokenizer.encode_continuation(chunk, ids);
    }
  };
}

io::TokenizeOptions tokenize_options(const io::Tokenizer& tokenizer, const RunConfig& run,
                                     int threads) {
  io::TokenizeOptions options;
  options.vocab_size = tokenizer.vocabulary_size();
  options.append_eos = run.data.append_eos;
  options.threads = threads;
  if (run.data.append_eos) {
    options.eos_id = eos_of(tokenizer, run);
  }
  return options;
}

}  // namespace anabatic::train
