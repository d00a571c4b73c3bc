// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/special_tokens.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace anabatic::io {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kLargestFile = std::int64_t{1} << 26;
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kTokensMap = "special_tokens_map.json";
constexpr const char* kModelConfig = "config.json";
constexpr const char* kGenerationConfig = "generation_config.json";

Json read_object(const fs::path& file) {
  if (!fs::exists(file)) return Json::object();
  return parse_json_object(read_file(file, kLargestFile),
                           fmt::format("[special tokens] {}", file.string()));
}

bool contains(const Ids& ids, std::int64_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// A token that one file names.
struct Named {
  const char* file;
  std::string text;
  std::int32_t id;
};

class Resolver {
 public:
  explicit Resolver(const SpecialTokenRequest& request)
      : request_(request),
        tokenizer_config_(request.tokenizer_config_text.empty()
                              ? read(kTokenizerConfig)
                              : parse_json_object(request.tokenizer_config_text,
                                                  "[special tokens] the tokenizer's config")),
        tokens_map_(read(kTokensMap)),
        model_config_(request.config_text.empty()
                          ? read(kModelConfig)
                          : parse_json_object(request.config_text, "[special tokens] the config")),
        generation_config_(read(kGenerationConfig)) {}

  SpecialTokens resolve() {
    resolve_eos();
    resolve_bos();
    choose_prefix();
    choose_suffix();
    return std::move(result_);
  }

 private:
  Json read(const char* file) const { return read_object(request_.directory / file); }
  std::string path(const char* file) const { return (request_.directory / file).string(); }

  // Ids of a model lie below its vocab_size, those of a tokenizer alone below its own.
  std::int64_t vocabulary_size() const {
    const auto found = model_config_.find("vocab_size");
    if (found != model_config_.end() && found->is_number_integer())
      return found->get<std::int64_t>();
    return request_.tokenizer != nullptr ? request_.tokenizer->vocabulary_size() : 0;
  }

  // "eos_token_id": 2 or [2, 5]; empty when absent or null.
  Ids read_ids(const Json& json, const char* file, const char* key) const {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) return {};
    Ids ids;
    const std::int64_t end = vocabulary_size();
    const auto add = [&](const Json& id) {
      const bool is_id = id.is_number_integer() && id >= 0 && (end == 0 || id < end);
      ANABATIC_REQUIRE(
          is_id, "[special tokens] {}: {}: expected an id{}, or a list of them, got {}", path(file),
          key, end == 0 ? "" : fmt::format(" below vocab_size {}", end), show_json_briefly(*found));
      ids.push_back(id.get<std::int64_t>());
    };
    if (found->is_array()) {
      for (const Json& id : *found) add(id);
    } else {
      add(*found);
    }
    return ids;
  }

  // "eos_token": "</s>" or {"content": "</s>", ...}. Nothing when it is absent or null, or when
  // there is no tokenizer to ask.
  std::optional<Named> read_token(const Json& json, const char* file, const char* key,
                                  bool is_needed) {
    const auto found = json.find(key);
    if (request_.tokenizer == nullptr || found == json.end() || found->is_null())
      return std::nullopt;
    const auto content = found->is_object() ? found->find("content") : found;
    const bool is_text = !(found->is_object() && content == found->end()) && content->is_string();
    ANABATIC_REQUIRE(is_text, "[special tokens] {}: {}: expected a token's text, got {}",
                     path(file), key, show_json_briefly(*found));
    const auto text = content->get<std::string>();
    const auto id = request_.tokenizer->token_to_id(text);
    ANABATIC_REQUIRE(
        id.has_value() || !is_needed,
        "[special tokens] {}: {}: expected a token of tokenizer.json, which lacks '{}'", path(file),
        key, text);
    if (!id) return std::nullopt;
    check_declared_id(text, *id);
    return Named{file, text, *id};
  }

  // added_tokens_decoder of tokenizer_config.json tells ids that tokenizer.json has given.
  void check_declared_id(const std::string& text, std::int32_t id) {
    const auto decoder = tokenizer_config_.find("added_tokens_decoder");
    if (decoder == tokenizer_config_.end() || !decoder->is_object()) return;
    for (const auto& [declared, token] : decoder->items()) {
      const auto content = token.is_object() ? token.find("content") : token.end();
      if (!token.is_object() || content == token.end() || *content != text ||
          declared == std::to_string(id))
        continue;
      const std::string note = fmt::format(
          "{}: '{}' is {} in tokenizer.json and {} in added_tokens_decoder of {}; {} counts",
          request_.directory.string(), text, id, declared, kTokenizerConfig, id);
      if (std::find(result_.warnings.begin(), result_.warnings.end(), note) ==
          result_.warnings.end())
        result_.warnings.push_back(note);
    }
  }

  // The two files of the tokenizer, the one first that transformers takes.
  std::vector<Named> tokens_of(const char* key, bool is_needed) {
    auto config = read_token(tokenizer_config_, kTokenizerConfig, key, is_needed);
    auto map = read_token(tokens_map_, kTokensMap, key, is_needed);
    if (!tokenizer_config_.contains("added_tokens_decoder")) std::swap(config, map);
    std::vector<Named> tokens;
    for (auto* token : {&config, &map})
      if (*token) tokens.push_back(std::move(**token));
    return tokens;
  }

  void resolve_eos() {
    const std::vector<Named> tokens = tokens_of("eos_token", true);
    const Ids generation = read_ids(generation_config_, kGenerationConfig, "eos_token_id");
    const Ids model = read_ids(model_config_, kModelConfig, "eos_token_id");
    const Ids& waited_for = generation.empty() ? model : generation;
    std::optional<std::int64_t> eos;
    if (!tokens.empty()) {
      eos = tokens.front().id;
    } else if (!waited_for.empty()) {
      const auto shared = std::find_if(waited_for.begin(), waited_for.end(),
                                       [&](std::int64_t id) { return contains(model, id); });
      eos = shared != waited_for.end() ? *shared : waited_for.front();
    }
    if (!eos) {
      if (!model_config_.contains("eos_token_id")) result_.stops = request_.default_eos;
      return;
    }
    result_.eos = static_cast<std::int32_t>(*eos);
    result_.stops = {*eos};
    for (const std::int64_t id : waited_for)
      if (!contains(result_.stops, id)) result_.stops.push_back(id);
    const bool agrees = (generation.empty() || contains(generation, *eos)) &&
                        (model.empty() || contains(model, *eos));
    if (!agrees || model.empty()) result_.exported_eos = eos_to_export(*eos);
    const bool is_one_token = std::all_of(tokens.begin(), tokens.end(),
                                          [&](const Named& token) { return token.id == *eos; });
    if (agrees && is_one_token) return;
    std::string said;
    for (const Named& token : tokens)
      said += fmt::format("{} '{}' ({}), ", token.file, token.text, token.id);
    if (!model.empty()) said += fmt::format("{} {}, ", kModelConfig, fmt::join(model, " and "));
    if (!generation.empty())
      said += fmt::format("{} {}, ", kGenerationConfig, fmt::join(generation, " and "));
    said.resize(said.size() - 2);
    result_.warnings.push_back(fmt::format(
        "{}: the files name different EOS tokens: {}; documents end with {}, a generation ends at "
        "{}, and checkpoints name {} in each file",
        request_.directory.string(), said, *eos, fmt::join(result_.stops, " and "),
        fmt::join(result_.exported_eos.empty() ? Ids{*eos} : result_.exported_eos, " and ")));
  }

  // A list of generation_config.json is kept, with EOS in front: it names more than one on purpose.
  // A single id that is not EOS is a leftover from a change of tokenizer.
  Ids eos_to_export(std::int64_t eos) const {
    Ids ids{eos};
    const auto found = generation_config_.find("eos_token_id");
    if (found == generation_config_.end() || !found->is_array()) return ids;
    const Ids listed = read_ids(generation_config_, kGenerationConfig, "eos_token_id");
    if (contains(listed, eos)) return listed;
    ids.insert(ids.end(), listed.begin(), listed.end());
    return ids;
  }

  bool asks_for_bos() const {
    const auto found = tokenizer_config_.find("add_bos_token");
    return found != tokenizer_config_.end() && *found == true;
  }

  void resolve_bos() {
    const bool is_needed = request_.add_bos == AddToken::kAlways ||
                           (request_.add_bos == AddToken::kAuto && asks_for_bos());
    const std::vector<Named> tokens = tokens_of("bos_token", is_needed);
    const Ids generation = read_ids(generation_config_, kGenerationConfig, "bos_token_id");
    const Ids model = read_ids(model_config_, kModelConfig, "bos_token_id");
    if (!tokens.empty()) {
      result_.bos = tokens.front().id;
    } else if (!generation.empty()) {
      result_.bos = static_cast<std::int32_t>(generation.front());
    } else if (!model.empty()) {
      result_.bos = static_cast<std::int32_t>(model.front());
    }
  }

  void choose_prefix() {
    if (request_.add_bos == AddToken::kNever || request_.tokenizer == nullptr) return;
    const auto own = request_.tokenizer->special_prefix();
    std::vector<std::int32_t> prefix(own.begin(), own.end());
    const auto asked = tokenizer_config_.find("add_bos_token");
    if (!prefix.empty() && asked != tokenizer_config_.end() && *asked == false &&
        request_.add_bos == AddToken::kAuto)
      result_.warnings.push_back(fmt::format(
          "{}: add_bos_token of {} is false, yet the post-processor of tokenizer.json puts '{}' in "
          "front; it counts (data.add_bos: false leaves it out)",
          request_.directory.string(), kTokenizerConfig,
          request_.tokenizer->id_to_token(prefix.front())));
    const bool wants_bos = request_.add_bos == AddToken::kAlways || asks_for_bos();
    ANABATIC_REQUIRE(request_.add_bos != AddToken::kAlways || result_.bos || !prefix.empty(),
                     "[special tokens] {}: data.add_bos: expected a bos_token in {} or a "
                     "bos_token_id in {}, found neither",
                     request_.directory.string(), kTokenizerConfig, kModelConfig);
    if (prefix.empty() && wants_bos && result_.bos) {
      require_token(*result_.bos, "bos_token_id");
      prefix = {*result_.bos};
      result_.post_processor_lacks_prefix = true;
    }
    result_.document.prefix = result_.text.prefix = std::move(prefix);
  }

  void choose_suffix() {
    if (request_.append_eos == AddToken::kNever || request_.tokenizer == nullptr) return;
    const auto own = request_.tokenizer->special_suffix();
    std::vector<std::int32_t> suffix(own.begin(), own.end());
    result_.text.suffix = suffix;
    ANABATIC_REQUIRE(
        request_.append_eos != AddToken::kAlways || result_.eos || !suffix.empty(),
        "[special tokens] {}: expected an eos_token in {} or an eos_token_id in {}, found neither; "
        "data.append_eos: false joins documents without one",
        request_.directory.string(), kTokenizerConfig, kModelConfig);
    if (result_.eos && std::find(suffix.begin(), suffix.end(), *result_.eos) == suffix.end()) {
      require_token(*result_.eos, "eos_token_id");
      suffix.push_back(*result_.eos);
    }
    if (request_.append_eos == AddToken::kAlways) result_.text.suffix = suffix;
    if (suffix.empty())
      result_.warnings.push_back(fmt::format("{}: no file names an EOS; documents end without one",
                                             request_.directory.string()));
    result_.document.suffix = std::move(suffix);
  }

  void require_token(std::int32_t id, const char* key) const {
    ANABATIC_REQUIRE(
        id < request_.tokenizer->vocabulary_size(),
        "[special tokens] {}: {}: expected an id below {}, the tokenizer's size, got {}",
        request_.directory.string(), key, request_.tokenizer->vocabulary_size(), id);
  }

  const SpecialTokenRequest& request_;
  Json tokenizer_config_, tokens_map_, model_config_, generation_config_;
  SpecialTokens result_;
};

}  // namespace

SpecialTokens resolve_special_tokens(const SpecialTokenRequest& request) {
  return Resolver(request).resolve();
}

}  // namespace anabatic::io
