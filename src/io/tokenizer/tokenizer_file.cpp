// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/tokenizer_file.h"

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/tokenizer/gguf/gguf_tokenizer.h"

namespace anabatic::io {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLargestConfig = std::int64_t{1} << 26;

bool adds_bos(const fs::path& directory) {
  const fs::path file = directory / "tokenizer_config.json";
  if (!fs::exists(file)) return true;
  const Json config = parse_json_object(read_file(file, kLargestConfig),
                                        fmt::format("[tokenizer] {}", file.string()));
  return config.value("add_bos_token", Json(true)) != false;
}

}  // namespace

std::optional<fs::path> find_tokenizer_file(const fs::path& model) {
  const bool is_file = is_gguf(model);
  if (is_file && has_gguf_tokenizer(GgufFiles::open(model).metadata())) return model;
  const fs::path directory = is_file ? model.parent_path() : model;
  for (const char* name : {"tokenizer.json", "tekken.json", "tokenizer.model"})
    if (fs::exists(directory / name)) return directory / name;
  return std::nullopt;
}

std::string tokenizer_json(const fs::path& file) {
  if (file.filename() == "tokenizer.json") return read_file(file);
  if (is_gguf(file)) return gguf_tokenizer_json(GgufFiles::open(file).metadata());
  return dump_json(tokenizer::read_document(file), 2);
}

namespace tokenizer {

Json read_document(const fs::path& file) {
  if (is_gguf(file)) return gguf_tokenizer_document(GgufFiles::open(file).metadata());
  const std::string text = read_file(file);
  if (file.extension() == ".json") return parse_document(text, file.string());
  return convert_sentencepiece(text, file.string(), adds_bos(file.parent_path()));
}

Json parse_document(std::string_view json, std::string_view name) {
  Json document;
  try {
    document = parse_json(json);
  } catch (const Json::exception& error) {
    throw InvalidArgument(fmt::format("[tokenizer] {}: expected JSON: {}", name, error.what()));
  }
  const bool is_tekken =
      document.is_object() && !document.contains("model") && document.contains("config");
  return is_tekken ? convert_tekken(document, fmt::format("[tokenizer] {}", name))
                   : std::move(document);
}

Json added_token(std::int32_t id, std::string_view content, bool is_special) {
  return {{"id", id},        {"content", content},    {"single_word", false},     {"lstrip", false},
          {"rstrip", false}, {"special", is_special}, {"normalized", !is_special}};
}

Json begin_with(std::string_view token, std::int32_t id) {
  const Json special{{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  const auto text = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  return {
      {"type", "TemplateProcessing"},
      {"single", {special, text("A", 0)}},
      {"pair", {special, text("A", 0), special, text("B", 1)}},
      {"special_tokens",
       {{token, {{"id", token}, {"ids", Json::array({id})}, {"tokens", Json::array({token})}}}}}};
}

Json empty_document() {
  return {{"version", "1.0"},      {"truncation", nullptr},         {"padding", nullptr},
          {"normalizer", nullptr}, {"pre_tokenizer", nullptr},      {"post_processor", nullptr},
          {"decoder", nullptr},    {"added_tokens", Json::array()}, {"model", nullptr}};
}

}  // namespace tokenizer
}  // namespace anabatic::io
