// SPDX-License-Identifier: Apache-2.0
#include "train/convert/gguf_files.h"

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/tokenizer/gguf/gguf_tokenizer.h"
#include "io/tokenizer/special_tokens.h"
#include "io/tokenizer/tokenizer_file.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLargestTextFile = std::int64_t{1} << 26;

// The one that is taken where a directory has several.
std::string chat_template_of(const fs::path& directory, const Json& config) {
  if (fs::exists(directory / "chat_template.jinja"))
    return read_file(directory / "chat_template.jinja", kLargestTextFile);
  const Json found = config.value("chat_template", Json());
  if (found.is_string()) return found.get<std::string>();
  if (found.is_array())
    for (const Json& each : found)
      if (each.is_object() && each.value("name", Json()) == "default" &&
          each.value("template", Json()).is_string())
        return each["template"].get<std::string>();
  return "";
}

// The id of "unk_token": "<unk>" or {"content": "<unk>", ...}.
std::optional<std::int64_t> id_named(const Json& config, const char* key,
                                     const io::Tokenizer& tokenizer) {
  Json token = config.value(key, Json());
  if (token.is_object()) token = token.value("content", Json());
  if (!token.is_string()) return std::nullopt;
  return tokenizer.token_to_id(token.get<std::string>());
}

// Whether a text gets this token at one of its ends; others have no place.
bool adds(const std::vector<std::int32_t>& tokens, const std::optional<std::int32_t>& token,
          const char* where, const fs::path& directory) {
  if (tokens.empty()) return false;
  if (token && tokens == std::vector{*token}) return true;
  throw Unsupported(
      fmt::format("[convert] {}: a GGUF file can only put {} of a text, the tokenizer puts {} "
                  "tokens there, the first of them {}",
                  directory.string(), where, tokens.size(), tokens.front()));
}

void add_from_directory(const fs::path& directory, const fs::path& file,
                        const model::ModelConfig& config, io::GgufKeys& keys) {
  const io::Tokenizer tokenizer = io::Tokenizer::load(directory);
  const io::SpecialTokens special = io::resolve_special_tokens(
      {.directory = directory, .tokenizer = &tokenizer, .default_eos = config.eos_token_ids});
  const fs::path config_file = directory / "tokenizer_config.json";
  const Json own = fs::exists(config_file)
                       ? parse_json_object(read_file(config_file, kLargestTextFile),
                                           fmt::format("[convert] {}", config_file.string()))
                       : Json::object();
  const io::GgufTokenizerFields fields{
      .vocab_size = config.spec.vocab_size,
      .bos = special.bos,
      .eos = special.eos,
      .unknown = id_named(own, "unk_token", tokenizer),
      .padding = id_named(own, "pad_token", tokenizer),
      .adds_bos = adds(special.text.prefix, special.bos, "BOS in front", directory),
      .adds_eos = adds(special.text.suffix, special.eos, "EOS after the end", directory),
      .chat_template = chat_template_of(directory, own)};
  io::add_gguf_tokenizer(io::tokenizer_json(file), fields, keys);
}

}  // namespace

void write_tokenizer_of_gguf(const fs::path& file, const fs::path& directory) {
  const io::GgufFiles files = io::GgufFiles::open(file);
  const io::GgufMetadata& metadata = files.metadata();
  if (!io::has_gguf_tokenizer(metadata)) return;
  write_file_atomically(directory / "tokenizer.json", io::tokenizer_json(file));
  write_file_atomically(directory / "tokenizer_config.json", io::gguf_tokenizer_config(metadata));
  if (const std::string text = io::gguf_chat_template(metadata); !text.empty())
    write_file_atomically(directory / "chat_template.jinja", text);
}

void add_tokenizer_keys(const fs::path& model, const model::ModelConfig& config,
                        io::GgufKeys& keys) {
  const auto file = io::find_tokenizer_file(model);
  if (!file) return io::add_no_gguf_tokenizer(keys);
  if (!io::is_gguf(*file)) return add_from_directory(file->parent_path(), *file, config, keys);
  const io::GgufFiles files = io::GgufFiles::open(*file);
  for (const auto& [name, value] : files.metadata().entries())
    if (name.starts_with("tokenizer.")) keys.add(name, value);
}

}  // namespace anabatic::train
