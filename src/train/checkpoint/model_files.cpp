// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/model_files.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/json_edit.h"
#include "base/log.h"
#include "base/text.h"
#include "io/gguf.h"
#include "io/tokenizer/gguf/gguf_tokenizer.h"
#include "io/tokenizer/tokenizer_file.h"
#include "model/mtp.h"
#include "model/quantization.h"
#include "train/model_session.h"
#include "train/tokenize.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLargestModelFile = std::int64_t{1} << 26;

// Files that may have to be changed, in the order in which they are read.
constexpr const char* kChangeable[] = {"config.json", "generation_config.json",
                                       "tokenizer_config.json", "special_tokens_map.json"};
// Files that are copied, so that a checkpoint is a model directory of its own.
constexpr const char* kCopied[] = {"tokenizer.json",     "tokenizer.model", "tekken.json",
                                   "vocab.json",         "merges.txt",      "added_tokens.json",
                                   "chat_template.jinja"};

std::string ids_text(const std::vector<std::int64_t>& ids) {
  return dump_json(ids.size() == 1 ? Json(ids[0]) : Json(ids));
}

std::vector<std::int64_t> ids_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return {};
  if (found->is_array()) return found->get<std::vector<std::int64_t>>();
  return {found->get<std::int64_t>()};
}

// The text of "eos_token": "</s>" or {"content": "</s>", ...}; "" where there is none.
std::string token_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return "";
  const Json content = found->is_object() ? found->value("content", Json()) : *found;
  return content.is_string() ? content.get<std::string>() : "";
}

// `text` of a file with the token at `key` replaced, in the form that the file uses.
std::string with_token(const std::string& text, const char* key, const std::string& token) {
  const Json json = parse_json(text);
  const auto found = json.find(key);
  const std::string quoted = dump_json(Json(token));
  if (found == json.end() || !found->is_object()) return with_member(text, key, quoted);
  return with_member(text, key, with_member(dump_json(*found), "content", quoted));
}

// A post-processor that does what `old` does and puts `token` in front.
Json with_prefix(const Json& old, const std::string& token, std::int32_t id) {
  const Json special{{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  const auto sequence = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  const Json added{
      {"type", "TemplateProcessing"},
      {"single", Json::array({special, sequence("A", 0)})},
      {"pair", Json::array({special, sequence("A", 0), sequence("B", 1)})},
      {"special_tokens",
       {{token, {{"id", token}, {"ids", Json::array({id})}, {"tokens", Json::array({token})}}}}}};
  if (old.is_null()) return added;
  return {{"type", "Sequence"}, {"processors", Json::array({old, added})}};
}

bool holds(const std::vector<std::int64_t>& ids, std::int64_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

ModelFiles::ModelFiles(const RunConfig& run, const model::ModelConfig& config)
    : source_(model_directory(run.model.path)) {
  const auto found = io::find_tokenizer_file(tokenizer_folder_or_file(run.model.path));
  const bool is_gguf = found && io::is_gguf(*found);
  if (is_gguf) source_ = *found;  // what is next to it belongs to another model
  const std::optional<io::Tokenizer> tokenizer = find_tokenizer(source_);
  special_ = special_tokens_of(run, tokenizer ? &*tokenizer : nullptr, config.eos_token_ids);
  log_warnings(special_);
  if (tokenizer) {
    if (tokenizer->vocabulary_size() > config.spec.vocab_size)
      log_warning(
          "[checkpoint] {}: the tokenizer has {} ids, vocab_size of config.json is {}: a text with "
          "one of the others cannot go into this model",
          source_.string(), tokenizer->vocabulary_size(), config.spec.vocab_size);
    if (special_.bos) bos_text_ = tokenizer->id_to_token(*special_.bos);
    if (special_.eos) eos_text_ = tokenizer->id_to_token(*special_.eos);
    if (special_.post_processor_lacks_prefix)
      prefix_text_ = tokenizer->id_to_token(special_.document.prefix.front());
    if (!fs::exists(source_ / "tokenizer.json"))
      converted_.push_back({"tokenizer.json", io::tokenizer_json(*found)});
  }
  std::string tokenizer_config;
  if (is_gguf) {
    const io::GgufFiles files = io::GgufFiles::open(*found);
    tokenizer_config = io::gguf_tokenizer_config(files.metadata());
    if (std::string text = io::gguf_chat_template(files.metadata()); !text.empty())
      converted_.push_back({"chat_template.jinja", std::move(text)});
  }
  for (const char* name : kChangeable) {
    const bool is_config = std::string_view(name) == "config.json";
    // A config.json of any name.
    const fs::path file =
        is_config && !fs::is_directory(run.model.path) ? fs::path(run.model.path) : source_ / name;
    const bool is_in_keys = name == std::string_view("tokenizer_config.json") && is_gguf;
    if (!is_in_keys && !fs::exists(file)) continue;
    files_.push_back({name, is_in_keys                       ? tokenizer_config
                            : is_config && io::is_gguf(file) ? model::config_text(file)
                                                             : read_file(file, kLargestModelFile)});
    if (is_config) files_.back().text = model::without_quantization(files_.back().text);
    if (is_config && !run.model.keep_mtp && !config.mtp_layers.empty())
      files_.back().text = model::without_mtp(files_.back().text);
    files_.back().text = with_special_tokens(files_.back());
  }
}

std::string ModelFiles::with_special_tokens(const File& file) const {
  std::string text = file.text;
  const Json json = parse_json(text);
  if (file.name.ends_with("config.json") && !file.name.starts_with("tokenizer")) {
    if (!special_.exported_eos.empty())
      text = with_member(text, "eos_token_id", ids_text(special_.exported_eos));
    const auto bos = ids_in(json, "bos_token_id");
    if (special_.bos && !bos.empty() && !holds(bos, *special_.bos))
      text = with_member(text, "bos_token_id", ids_text({*special_.bos}));
    return text;
  }
  const bool must_name = file.name == "tokenizer_config.json";
  if (!eos_text_.empty() && (must_name || !token_in(json, "eos_token").empty()) &&
      token_in(json, "eos_token") != eos_text_)
    text = with_token(text, "eos_token", eos_text_);
  const std::string bos = token_in(json, "bos_token");
  if (!bos_text_.empty() && !bos.empty() && bos != bos_text_)
    text = with_token(text, "bos_token", bos_text_);
  if (must_name && json.contains("add_bos_token") && !special_.document.prefix.empty() &&
      json["add_bos_token"] == false)
    text = with_member(text, "add_bos_token", "true");
  return text;
}

std::int64_t ModelFiles::num_bytes() const {
  std::int64_t bytes = 0;
  for (const auto* files : {&files_, &converted_})
    for (const File& file : *files) bytes += static_cast<std::int64_t>(file.text.size());
  for (const char* copied : kCopied) {
    std::error_code absent;
    const auto size = fs::file_size(source_ / copied, absent);
    if (!absent) bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

void ModelFiles::write(const fs::path& directory, const model::WeightMap& map,
                       model::SaveDType dtype) const {
  const std::string name =
      dump_json(Json(std::string(model::config_name(model::dominant_dtype(map, dtype)))));
  for (const File& file : files_) {
    std::string text = file.text;
    if (file.name == "config.json") {
      const Json json = parse_json(text);
      const bool is_old = json.contains("torch_dtype");
      if (is_old) text = with_member(text, "torch_dtype", name);
      if (json.contains("dtype") || !is_old) text = with_member(text, "dtype", name);
    }
    write_file_atomically(directory / file.name, text);
  }
  for (const char* copied : kCopied)
    if (fs::exists(source_ / copied))
      fs::copy_file(source_ / copied, directory / copied, fs::copy_options::overwrite_existing);
  for (const File& file : converted_) write_file_atomically(directory / file.name, file.text);
  if (!prefix_text_.empty()) {
    const fs::path file = directory / "tokenizer.json";
    const std::string text = read_file(file);
    const Json json = parse_json(text);
    const Json processor = with_prefix(json.value("post_processor", Json()), prefix_text_,
                                       special_.document.prefix.front());
    write_file_atomically(file, with_member(text, "post_processor", dump_json(processor)));
  }
  const std::string wrong = contradictions_in(directory, map, dtype, special_);
  if (!wrong.empty())
    throw InternalError(
        fmt::format("[checkpoint] {} contradicts itself:{}", directory.string(), wrong));
}

std::string contradictions_in(const fs::path& directory, const model::WeightMap& map,
                              model::SaveDType dtype, const io::SpecialTokens& special) {
  std::string wrong;
  const auto read = [&](const char* name) {
    return fs::exists(directory / name) ? parse_json(read_file(directory / name, kLargestModelFile))
                                        : Json::object();
  };
  const Json config = read("config.json");
  const std::string_view saved = model::config_name(model::dominant_dtype(map, dtype));
  for (const char* key : {"dtype", "torch_dtype"})
    if (config.contains(key) && config[key] != saved)
      wrong += fmt::format("\n  config.json: {} is {}, the weights are {}", key,
                           show_json(config[key]), saved);
  const auto has = [&](std::string_view name) {
    return std::any_of(map.tensors.begin(), map.tensors.end(),
                       [&](const model::FileTensor& tensor) { return tensor.name == name; });
  };
  const bool is_tied = config.value("tie_word_embeddings", Json(false)) == true;
  // Families differ in what the absent field means.
  if (config.contains("tie_word_embeddings") && is_tied == has("lm_head.weight"))
    wrong += fmt::format("\n  config.json: tie_word_embeddings is {}, the weights hold {} head",
                         is_tied, has("lm_head.weight") ? "a" : "no");
  const model::FileTensor& embedding = map.tensors.front();
  if (config.contains("vocab_size") && config["vocab_size"] != embedding.shape.front())
    wrong += fmt::format("\n  config.json: vocab_size is {}, {} has {} rows",
                         show_json(config["vocab_size"]), embedding.name, embedding.shape.front());
  if (!special.eos) return wrong;
  for (const char* name : {"config.json", "generation_config.json"}) {
    const auto ids = ids_in(read(name), "eos_token_id");
    if (!ids.empty() && !holds(ids, *special.eos))
      wrong += fmt::format("\n  {}: eos_token_id is {}, documents end with {}", name, ids_text(ids),
                           *special.eos);
  }
  return wrong;
}

}  // namespace anabatic::train
