// SPDX-License-Identifier: Apache-2.0
#include "cli/model_facts.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/gguf.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/tokenizer_file.h"
#include "model/config_diagnosis.h"
#include "model/declarations.h"
#include "model/stored_tensor.h"
#include "model/weight_files.h"

namespace anabatic::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLargestFile = std::int64_t{1} << 26;

// Tensors of files that no parameter is read from.
std::vector<Ignored> unused_tensors(const model::ModelConfig& config, const model::WeightMap& map,
                                    const io::SafetensorsDirectory& files) {
  std::set<std::string_view> used;
  for (const model::FileTensor& tensor : map.tensors) {
    for (const io::TensorEntry* entry : model::find_stored(files, tensor.name).entries())
      used.insert(entry->name);
  }
  std::vector<Ignored> ignored;
  const model::Declarations declared = model::declare(config.spec);
  for (const auto& [name, entry] : files.entries()) {
    if (used.contains(name)) continue;
    const auto repeated =
        std::ranges::find(declared.repeated, name, &model::RepeatedTensor::tensor);
    ignored.push_back(
        {name, repeated == declared.repeated.end()
                   ? "the maths does not use it"
                   : fmt::format("equal to {}, as the config says", repeated->parameter)});
  }
  return ignored;
}

void add_safetensors(const fs::path& directory, const model::ModelConfig& config,
                     ModelFacts& facts) {
  const io::SafetensorsDirectory files = io::SafetensorsDirectory::open(directory);
  WeightFacts weights{.format = "safetensors",
                      .num_tensors = static_cast<std::int64_t>(files.entries().size())};
  std::set<std::string> paths;
  for (const auto& [name, entry] : files.entries()) {
    paths.insert(entry.file->string());
    weights.bytes[entry.dtype_name] += static_cast<std::int64_t>(entry.data.size());
  }
  weights.num_files = static_cast<std::int64_t>(paths.size());
  try {
    const model::WeightMap map = model::match_weight_map(config, files, directory);
    facts.ignored = unused_tensors(config, map, files);
  } catch (const Error& error) {
    weights.problem = error.what();
  }
  facts.weights = std::move(weights);
}

void add_gguf(const fs::path& path, ModelFacts& facts) {
  const io::GgufFiles files = io::GgufFiles::open(path);
  WeightFacts weights{.format = "GGUF",
                      .num_files = static_cast<std::int64_t>(files.paths().size()),
                      .num_tensors = static_cast<std::int64_t>(files.tensors().size())};
  for (const auto& [name, tensor] : files.tensors())
    weights.bytes[std::string(tensor.type->name)] += static_cast<std::int64_t>(tensor.data.size());
  facts.weights = std::move(weights);
  const io::GgufMetadata& metadata = files.metadata();
  if (const auto kind = metadata.text("tokenizer.ggml.model")) {
    const io::GgufValue* tokens = metadata.find("tokenizer.ggml.tokens");
    facts.tokenizer = {.place = "tokenizer.ggml.model",
                       .kind = std::string(*kind),
                       .num_ids = tokens == nullptr ? 0 : tokens->count};
  }
  if (const auto text = metadata.text("tokenizer.chat_template"))
    facts.chat_template = {.place = "tokenizer.chat_template",
                           .num_bytes = static_cast<std::int64_t>(text->size())};
}

std::optional<TokenizerFacts> tokenizer_of(const fs::path& directory) {
  const auto file = io::find_tokenizer_file(directory);
  if (!file) return std::nullopt;
  TokenizerFacts facts{.place = file->filename().string()};
  try {
    const Json document = io::tokenizer::read_document(*file);
    const Json& model = document.at("model");
    facts.kind = model.value("type", "BPE");  // which old files do not name
    facts.num_ids = io::Tokenizer::load(*file).vocabulary_size();
  } catch (const std::exception& error) {
    facts.problem = error.what();
  }
  return facts;
}

std::optional<TemplateFacts> template_of(const fs::path& directory) {
  std::error_code absent;
  for (const char* name : {"chat_template.jinja", "chat_template.json"})
    if (const auto bytes = fs::file_size(directory / name, absent); !absent)
      return TemplateFacts{name, static_cast<std::int64_t>(bytes)};
  const fs::path file = directory / "tokenizer_config.json";
  if (!fs::exists(file, absent)) return std::nullopt;
  const Json config = try_parse_json(read_file(file, kLargestFile));
  const auto found = config.is_object() ? config.find("chat_template") : config.end();
  if (found == config.end() || found->is_null()) return std::nullopt;
  const std::string text = found->is_string() ? found->get<std::string>() : dump_json(*found);
  return TemplateFacts{"tokenizer_config.json", static_cast<std::int64_t>(text.size())};
}

// Weights of other formats, which nothing here reads.
void add_other_weights(const fs::path& directory, std::vector<Ignored>& ignored) {
  constexpr std::string_view kEnds[] = {".bin", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth"};
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    if (entry.is_regular_file() &&
        std::ranges::find(kEnds, entry.path().extension().string()) != std::end(kEnds))
      names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  for (std::string& name : names)
    ignored.push_back({std::move(name),
                       "of a model directory only config.json, safetensors and the tokenizer are "
                       "read"});
}

bool has_weights(const fs::path& directory) {
  std::error_code absent;
  return fs::exists(directory / "model.safetensors", absent) ||
         fs::exists(directory / "model.safetensors.index.json", absent);
}

}  // namespace

LayerKinds layer_kinds(const model::ModelSpec& spec) {
  LayerKinds kinds;
  for (const model::LayerSpec& layer : spec.layers) {
    ++(std::holds_alternative<model::Moe>(layer.feed_forward) ? kinds.moe : kinds.dense);
    const auto* gqa = std::get_if<model::Gqa>(&layer.attention);
    if (std::holds_alternative<model::Mla>(layer.attention))
      ++kinds.latent;
    else
      ++(gqa != nullptr && gqa->window > 0 ? kinds.sliding : kinds.full);
    if (gqa != nullptr) kinds.window = std::max(kinds.window, gqa->window);
  }
  return kinds;
}

std::int64_t WeightFacts::num_bytes() const {
  std::int64_t total = 0;
  for (const auto& [dtype, count] : bytes) total += count;
  return total;
}

bool ModelFacts::has_problem() const {
  return (weights && !weights->problem.empty()) || (tokenizer && !tokenizer->problem.empty());
}

ModelFacts facts_of(const fs::path& path, const model::ModelConfig& config) {
  ModelFacts facts;
  if (io::is_gguf(path)) {
    add_gguf(path, facts);
    return facts;
  }
  std::error_code ignored;
  const fs::path directory =
      fs::is_directory(path, ignored) ? path : fs::absolute(path).parent_path();
  if (has_weights(directory)) add_safetensors(directory, config, facts);
  facts.tokenizer = tokenizer_of(directory);
  facts.chat_template = template_of(directory);
  for (const std::string& key : model::diagnose_config(path).unknown)
    facts.ignored.push_back({"config.json: " + key, "no family knows this field"});
  add_other_weights(directory, facts.ignored);
  return facts;
}

}  // namespace anabatic::cli
