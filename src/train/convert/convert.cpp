// SPDX-License-Identifier: Apache-2.0
#include "train/convert/convert.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/json.h"
#include "base/json_edit.h"
#include "base/log.h"
#include "base/text.h"
#include "io/checksums.h"
#include "model/gguf_export.h"
#include "model/lora/merged_weights.h"
#include "model/lora/peft_files.h"
#include "model/mtp.h"
#include "model/quantization.h"
#include "model/weight_files.h"
#include "train/attention/key_blocks.h"
#include "train/convert/gguf_files.h"
#include "train/convert/run_manifest.h"
#include "train/convert/stored_model.h"
#include "train/convert/trained_export.h"
#include "train/convert/trained_grid.h"
#include "train/convert/unfinished.h"
#include "train/sparsity/mask_manifest.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "config.json";

// A mixture sums the same numbers in another order: of the largest logit.
constexpr double kLargestRounding = 2e-5;

// Logits of equal weights are equal but for the order of sums, which one program does not change.
constexpr double kLargestDifference = 1e-3;

bool is_weight_file(const std::string& name) {
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
         name == io::kChecksumsFile || name == kManifestFile || name == kTrainedGridFile ||
         name == kMaskManifestFile;
}

bool fuses_experts(const model::Spelling& spelling, const model::Declarations& declared) {
  return std::none_of(declared.parameters.begin(), declared.parameters.end(),
                      [&](const model::Parameter& parameter) {
                        return parameter.is_per_expert() &&
                               model::has_tensor_per_expert(parameter, spelling);
                      });
}

// That of experts in MXFP4.
std::size_t require_mxfp4_spelling(const model::ModelConfig& config) {
  if (const auto spelling = model::mxfp4_spelling(config)) return *spelling;
  throw Unsupported(
      fmt::format("[convert] --dtype mxfp4: expected gpt_oss, got {}; transformers reads experts "
                  "of no other family in MXFP4",
                  config.model_type));
}

// The spelling that experts are written in.
std::size_t spelling_of(const model::ModelConfig& config, std::size_t found,
                        const ConvertOptions& options) {
  if (options.block_type != nullptr) found = require_mxfp4_spelling(config);
  if (options.packs_weights && !options.fuses_experts && model::num_experts(config.spec) > 0) {
    ConvertOptions separate = options;
    separate.fuses_experts = false;  // compressed-tensors packs matrices of single layers
    return spelling_of(config, found, separate);
  }
  if (!options.fuses_experts) return found;
  ANABATIC_REQUIRE(model::num_experts(config.spec) > 0, "[convert] --experts: {} has no experts",
                   config.model_type);
  const model::Declarations declared = model::declare(config.spec);
  const auto fits = [&](std::size_t spelling) {
    return fuses_experts(config.spec.spellings[spelling], declared) == *options.fuses_experts;
  };
  if (fits(found)) return found;
  for (std::size_t i = 0; i < config.spec.spellings.size(); ++i)
    if (fits(i)) return i;
  throw Unsupported(fmt::format("[convert] --experts: {} has no {} spelling", config.model_type,
                                *options.fuses_experts ? "fused" : "separate"));
}

// The map of what will be written. Tensors keep the dtype of the source's, also where they are
// spelled otherwise.
model::WeightMap target_map(const model::ModelConfig& config, const model::WeightMap& source,
                            const ConvertOptions& options,
                            const std::optional<TrainedGrid>& trained) {
  const std::size_t spelling = spelling_of(config, model::export_spelling(source), options);
  model::WeightMap map = model::respelled(config, source, spelling);
  if (options.dtype)
    for (model::FileTensor& tensor : map.tensors) tensor.dtype = *options.dtype;
  if (options.packs_weights) pack_trained(map, *trained);
  if (options.block_type != nullptr && trained) require_trained_blocks(map, *trained);
  return map;
}

// The map of a mixture, whose experts and routers have the dtypes of the MLPs.
model::WeightMap mixture_map(const model::ModelConfig& mixture, const model::WeightMap& source,
                             const ConvertOptions& options) {
  model::WeightMap map =
      model::make_weight_map(mixture, spelling_of(mixture, 0, options), DType::kFloat32);
  std::map<std::string_view, DType> of_parameters;
  for (const model::FileTensor& tensor : source.tensors)
    of_parameters.emplace(tensor.pieces.front().state, tensor.dtype);
  for (model::FileTensor& tensor : map.tensors) {
    const std::string& state = tensor.pieces.front().state;
    const std::string from = UpcycledWeights::origin(state);
    const std::string mlp =
        state.substr(0, state.find('.', state.find('.') + 1)) + ".mlp.gate.weight";
    tensor.dtype = options.dtype.value_or(of_parameters.at(from.empty() ? mlp : from));
  }
  return map;
}

// Null where no adapter is merged.
std::unique_ptr<model::AdapterValues> load_adapter(const std::string& directory,
                                                   const StoredModel& base) {
  if (directory.empty()) return nullptr;
  const model::PeftFiles files(base.config(), directory);
  if (const std::string reason = model::why_not_merged(base.config(), files.adapter());
      !reason.empty())
    throw Unsupported(fmt::format("[lora] {}: {}; use it next to the model, as --adapter does",
                                  directory, reason));
  files.require_equal_weights(base.config(), base.reader());
  auto values = std::make_unique<model::AdapterValues>(files.adapter());
  files.load(values->writer());
  return values;
}

// Weights with scales keep them, unless another dtype is asked for.
void require_numbers(const fs::path& path, const StoredModel& source,
                     const ConvertOptions& options) {
  if (options.adapter.empty() || !source.is_quantised() || options.dtype) return;
  throw Unsupported(
      fmt::format("[lora] {}: its weights have scales, into which nothing is merged; --dtype bf16 "
                  "writes numbers",
                  path.string()));
}

// Whose grid a conversion writes, for messages.
std::string owner_of_grid(const fs::path& source, const ConvertOptions& options) {
  return !options.grid_of.empty()   ? options.grid_of
         : !options.adapter.empty() ? options.adapter
                                    : source.string();
}

std::optional<TrainedGrid> trained_grid_for(const fs::path& path, const StoredModel& source,
                                            const ConvertOptions& options) {
  const bool writes_grid =
      options.writes_gguf || options.packs_weights || options.block_type != nullptr;
  ANABATIC_REQUIRE(
      options.grid_of.empty() || (writes_grid && options.adapter.empty() && !options.upcycle),
      "[convert] --grid_of: expected --format gguf, compressed-tensors or mxfp4, and "
      "no --upcycle, got another form for the grid of {}",
      options.grid_of);
  std::optional<TrainedGrid> trained = grid_of_conversion(path, options.adapter, options.grid_of);
  if (const std::string owner = owner_of_grid(path, options); trained && owner != path.string()) {
    if (!options.grid_of.empty()) (void)model::PeftFiles(source.config(), owner);
    if (options.keeps_mtp) require_weights(source.map(), *trained, owner);
  }
  if (trained && trained->rounds_activations && !options.packs_weights)
    log_warning(
        "[convert] {}: it was trained with quantization.activations: int8_token, for which the "
        "files have no field",
        owner_of_grid(path, options));
  return trained;
}

// What the result holds: the parameters of the source, with an adapter merged into them, or those
// of a mixture made from them.
model::StateReader values_of(const StoredModel& source, const model::ModelConfig& result,
                             const std::optional<UpcycleOptions>& upcycle,
                             const model::AdapterValues* adapter = nullptr) {
  if (adapter != nullptr) return model::merged_reader(source.reader(), *adapter);
  if (!upcycle) return source.reader();
  return [mixture = UpcycledWeights(source.reader(), source.config(), result, *upcycle)](
             std::string_view state, std::int64_t first, std::span<float> values) {
    mixture.read(state, first, values);
  };
}

std::optional<UpcycleOptions> without_noise(std::optional<UpcycleOptions> options) {
  if (options) options->noise = 0;
  return options;
}

std::string config_for(const model::ModelConfig& config, const std::string& text,
                       const ConvertOptions& options) {
  if (options.upcycle) return upcycled_config(text, config, *options.upcycle);
  return options.keeps_mtp || config.mtp_layers.empty() ? text : model::without_mtp(text);
}

bool is_f32(const model::WeightMap& map) {
  return std::ranges::all_of(
      map.tensors, [](const model::FileTensor& tensor) { return tensor.dtype == DType::kFloat32; });
}

std::string with_dtype(const std::string& config, const model::WeightMap& map,
                       const ConvertOptions& options, const std::optional<TrainedGrid>& trained) {
  const std::string name = dump_json(
      Json(std::string(model::config_name(model::dominant_dtype(map, model::SaveDType::kSource)))));
  const Json json = parse_json(config);
  std::string text = options.block_type != nullptr ? model::with_mxfp4(config)
                                                   : model::without_quantization(config);
  if (options.packs_weights)
    text = model::with_packed_weights(text, trained->grid, trained->rounds_activations,
                                      unpacked_modules(map));
  for (const char* key : {"torch_dtype", "dtype"})
    if (json.contains(key)) text = with_member(text, key, name);
  return text;
}

// Files other than weights and config.json, byte for byte.
void copy_other_files(const fs::path& source, const fs::path& destination) {
  for (const fs::directory_entry& entry : fs::directory_iterator(source)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || is_weight_file(name) || name == kConfigFile) continue;
    fs::copy_file(entry.path(), destination / name);
  }
}

void require_all(const fs::path& directory, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  throw Error(fmt::format("[convert] {}: what was written is not what was read:\n  {}",
                          directory.string(), fmt::join(problems, "\n  ")));
}

// Tensors of `others` that equal one of the model, those of layers that are left out, and those
// that the model does not use.
void classify(const model::ModelConfig& config, std::vector<ManifestTensor> others,
              Manifest& manifest) {
  const model::Declarations declared = model::declare(config.spec);
  for (ManifestTensor& tensor : others) {
    const bool is_repeated = std::any_of(
        declared.repeated.begin(), declared.repeated.end(),
        [&](const model::RepeatedTensor& repeated) { return repeated.tensor == tensor.name; });
    const bool is_dropped = model::left_out_layer(config, tensor.name) >= 0;
    (is_repeated  ? manifest.repeated
     : is_dropped ? manifest.dropped
                  : manifest.ignored)
        .push_back(std::move(tensor));
  }
}

Manifest describe_source(const fs::path& path, const StoredModel& source) {
  Manifest manifest{.source = path.string()};
  std::vector<ManifestTensor> others;
  manifest.read = source.describe(Direction::kRead, others);
  classify(source.config(), std::move(others), manifest);
  return manifest;
}

// Tensors that the model does not use and that can be written: those of a dtype that has a name
// here.
std::vector<const io::TensorEntry*> handed_through(const Manifest& manifest,
                                                   const model::WeightSource* source) {
  std::vector<const io::TensorEntry*> entries;
  if (source == nullptr) return entries;
  for (const ManifestTensor& tensor : manifest.ignored)
    if (const io::TensorEntry* entry = source->files().find(tensor.name); entry->dtype)
      entries.push_back(entry);
  return entries;
}

std::vector<std::string> differing_logits(const LogitsComparison& logits, std::string_view what,
                                          double allowed = kLargestDifference) {
  if (logits.largest_difference <= allowed) return {};
  return {
      fmt::format("logits: expected those of {} within {}, found a difference of {}; {} of {} "
                  "next tokens agree",
                  what, allowed, logits.largest_difference, logits.agreeing, logits.tokens)};
}

// And the largest logit of the first.
std::pair<LogitsComparison, double> compare_logits_of(const fs::path& a, const std::string& adapter,
                                                      const fs::path& b,
                                                      const model::ModelConfig& config) {
  const auto tokens = probe_tokens(config);
  const std::vector<float> before = logits_of(a, tokens, adapter);
  double largest = 0;
  for (const float logit : before) largest = std::max(largest, std::abs(double{logit}));
  return {compare_logits(before, logits_of(b, tokens), config.spec.vocab_size), largest};
}

const io::TensorEntry& required_tensor(const io::SafetensorsDirectory& files, const char* name,
                                       DType dtype, const fs::path& file) {
  const io::TensorEntry* entry = files.find(name);
  ANABATIC_REQUIRE(entry != nullptr && entry->dtype == dtype,
                   "[manifest] {}: expected a tensor {} of {}, found {}", file.string(), name,
                   to_string(dtype), entry == nullptr ? "none" : entry->dtype_name);
  return *entry;
}

std::vector<std::string> check_reference(const fs::path& directory,
                                         const model::ModelConfig& config, const fs::path& file) {
  const io::SafetensorsDirectory files = io::SafetensorsDirectory::open(file);
  const io::TensorEntry& ids = required_tensor(files, "input_ids", DType::kInt64, file);
  const io::TensorEntry& logits = required_tensor(files, "logits", DType::kFloat32, file);
  const std::int64_t count = ids.num_elements(), vocab = config.spec.vocab_size;
  ANABATIC_REQUIRE(
      count > 0 && logits.num_elements() / count == vocab && logits.num_elements() % count == 0,
      "[manifest] {}: expected {} logits for each of {} input_ids, found {}", file.string(), vocab,
      count, logits.num_elements());
  std::vector<std::int64_t> wide(static_cast<std::size_t>(count));
  std::memcpy(wide.data(), ids.data.data(), ids.data.size());
  std::vector<std::int32_t> tokens;
  for (const std::int64_t id : wide) {
    ANABATIC_REQUIRE(0 <= id && id < vocab,
                     "[manifest] {}: expected input_ids below vocab_size {}, found {}",
                     file.string(), vocab, id);
    tokens.push_back(static_cast<std::int32_t>(id));
  }
  std::vector<float> expected(static_cast<std::size_t>(logits.num_elements()));
  std::memcpy(expected.data(), logits.data.data(), logits.data.size());
  return differing_logits(compare_logits(expected, logits_of(directory, tokens), vocab),
                          file.string());
}

// Reads what was written, which is on the disk.
void prove_values(const model::StateReader& read, const fs::path& path, Manifest& manifest) {
  const LogScope quiet({});  // the source told everything
  const StoredModel written(path);
  const model::ValueComparison values = written.compare(read);
  require_all(path, values.differences);
  std::vector<ManifestTensor> unused;
  manifest.written = written.describe(Direction::kWritten, unused);
  for (ManifestTensor& tensor : manifest.written)
    if (const auto error = values.largest_errors.find(tensor.name);
        error != values.largest_errors.end())
      tensor.largest_error = error->second;
  manifest.written.insert(manifest.written.end(), unused.begin(), unused.end());
}

// Where the result was rounded to another dtype, logits are compared but may differ.
void prove_logits(const fs::path& source_path, const model::ModelConfig& config,
                  const fs::path& path, bool was_rounded, Manifest& manifest) {
  const auto [logits, largest] = compare_logits_of(source_path, manifest.adapter, path, config);
  manifest.logits = logits;
  const double allowed = manifest.upcycle ? kLargestRounding * largest : kLargestDifference;
  if (!was_rounded) require_all(path, differing_logits(logits, source_path.string(), allowed));
}

Manifest convert_to_directory(const fs::path& source_path, const fs::path& destination,
                              const ConvertOptions& options) {
  const StoredModel source(source_path, options.keeps_mtp);
  ANABATIC_REQUIRE(!options.packs_weights || (!options.upcycle && options.block_type == nullptr),
                   "[convert] --format compressed-tensors: expected neither --upcycle nor --dtype "
                   "mxfp4 with it");
  const bool writes_grid = options.packs_weights || options.block_type != nullptr;
  const std::optional<TrainedGrid> trained = trained_grid_for(source_path, source, options);
  require_directory_form(trained, options.packs_weights, options.block_type != nullptr,
                         owner_of_grid(source_path, options));
  if (trained && !options.adapter.empty() && !writes_grid)
    log_warning(
        "[lora] {}: it was trained on weights in {}; it is merged into the weights as they are",
        options.adapter, to_string(trained->grid));
  Unfinished directory(destination);
  const fs::path& path = directory.path();
  fs::create_directory(path);
  Manifest manifest = describe_source(source_path, source);
  manifest.upcycle = options.upcycle;
  manifest.adapter = options.adapter;
  const auto adapter = load_adapter(options.adapter, source);
  require_numbers(source_path, source, options);
  const std::string text = config_for(source.config(), model::config_text(source_path), options);
  if (fs::is_directory(source_path))
    copy_other_files(source_path, path);
  else
    write_tokenizer_of_gguf(source_path, path);
  write_file_atomically(path / kConfigFile, text);
  const model::ModelConfig result = options.upcycle ? model::load_config(path) : source.config();
  const model::WeightMap map = options.upcycle ? mixture_map(result, source.map(), options)
                                               : target_map(result, source.map(), options, trained);
  // Rounded to bf16 where the source is F8_E4M3 with scales of f32.
  const bool changes_dtype = options.dtype || options.block_type != nullptr ||
                             options.packs_weights || source.is_quantised();
  const bool rounds = changes_dtype || (adapter && !is_f32(map));
  if (changes_dtype || !fs::is_directory(source_path))
    write_file_atomically(path / kConfigFile, with_dtype(text, map, options, trained));
  const auto write = [&](const model::StateReader& read) {
    io::write_checksums(path, model::export_weights(map, path, model::SaveDType::kSource, read,
                                                    {.max_shard_bytes = options.max_shard_bytes},
                                                    handed_through(manifest, source.directory()),
                                                    io::threads_for_files()));
    prove_values(read, path, manifest);
  };
  write(values_of(source, result, without_noise(options.upcycle), adapter.get()));
  if (options.compares_logits) prove_logits(source_path, source.config(), path, rounds, manifest);
  if (options.upcycle && options.upcycle->noise > 0)
    write(values_of(source, result, options.upcycle));
  write_manifest(path, manifest);
  if (const auto sparse = find_sparse_parameters(source_path))
    write_mask_manifest(mask_manifest_path(path), *sparse, path);
  directory.finish();
  return manifest;
}

Manifest convert_to_gguf(const fs::path& source_path, const fs::path& destination,
                         const ConvertOptions& options) {
  ANABATIC_REQUIRE(!options.fuses_experts.has_value(),
                   "[convert] --experts: a GGUF file has one tensor for all experts of a layer");
  ANABATIC_REQUIRE(!options.upcycle,
                   "[convert] --upcycle: writes a directory, which can be converted then");
  if (fs::is_directory(source_path) && find_key_blocks(source_path))
    log_warning(
        "[convert] {}: it was trained with attention.blocks, for which a GGUF file has no key: "
        "readers of it attend to all keys",
        source_path.string());
  const StoredModel source(source_path, options.keeps_mtp);
  const model::GgufParameterType trained =
      gguf_type_of(trained_grid_for(source_path, source, options), options.block_type,
                   options.dtype, owner_of_grid(source_path, options));
  const auto adapter = load_adapter(options.adapter, source);
  require_numbers(source_path, source, options);
  const model::StateReader values = values_of(source, source.config(), {}, adapter.get());
  const model::GgufTarget target =
      model::gguf_target(source.config(), source.map(), options.block_type, trained);
  io::GgufKeys keys;
  model::add_gguf_config(source.config(), destination.stem().string(), target, keys);
  add_tokenizer_keys(source_path, source.config(), keys);
  Unfinished file(destination);
  Unfinished manifest_file(manifest_path(destination), true);  // perhaps of a file that is gone
  Manifest manifest = describe_source(source_path, source);
  manifest.adapter = options.adapter;
  model::write_gguf(file.path(), std::move(keys), target, values);
  prove_values(values, file.path(), manifest);
  if (options.compares_logits)
    prove_logits(source_path, source.config(), file.path(),
                 options.dtype || options.block_type != nullptr || trained.type != nullptr ||
                     source.is_quantised() || (adapter && !is_f32(source.map())),
                 manifest);
  manifest.in_f16 = target.in_f16;
  write_manifest_file(manifest_file.path(), manifest);
  if (const auto sparse = find_sparse_parameters(source_path)) {
    Unfinished mask_file(mask_manifest_path(destination), true);
    write_mask_manifest(mask_file.path(), *sparse, file.path());
    mask_file.finish();
  }
  manifest_file.finish();
  file.finish();
  return manifest;
}

}  // namespace

Manifest convert(const fs::path& source, const fs::path& destination,
                 const ConvertOptions& options) {
  ANABATIC_REQUIRE(fs::is_directory(source) || io::is_gguf(source),
                   "[convert] {}: expected a model directory or a GGUF file, found neither",
                   source.string());
  ANABATIC_REQUIRE(!fs::exists(source / model::kAdapterConfig) || fs::exists(source / kConfigFile),
                   "[convert] {0}: expected a model, got an adapter: lora convert writes it, lora "
                   "merge adds it to the model below it, and --grid_of {0} writes that model in "
                   "its grid",
                   source.string());
  return options.writes_gguf ? convert_to_gguf(source, destination, options)
                             : convert_to_directory(source, destination, options);
}

std::vector<std::string> check_manifest(const fs::path& path, const std::optional<fs::path>& source,
                                        const std::optional<fs::path>& reference) {
  const Manifest manifest = read_manifest(path);
  if (manifest.kind != ManifestKind::kConversion) {
    ANABATIC_REQUIRE(!reference, "[manifest] --reference: expected what convert wrote, got {}",
                     path.string());
    return check_run_manifest(path, manifest, source);
  }
  const StoredModel found(path);
  std::vector<ManifestTensor> others;
  std::vector<ManifestTensor> tensors = found.describe(Direction::kWritten, others);
  tensors.insert(tensors.end(), others.begin(), others.end());
  std::vector<std::string> problems = differences(manifest.written, tensors);
  const auto add = [&](const std::vector<std::string>& more) {
    problems.insert(problems.end(), more.begin(), more.end());
  };
  if (source) {
    const StoredModel from(*source);
    std::vector<ManifestTensor> unused;
    std::vector<ManifestTensor> now = from.describe(Direction::kRead, unused);
    now.insert(now.end(), unused.begin(), unused.end());
    for (const std::string& line : differences(tensors_of_source(manifest), now))
      problems.push_back(fmt::format("{}: {}", source->string(), line));
    const auto adapter = load_adapter(manifest.adapter, from);
    add(found.compare(values_of(from, found.config(), manifest.upcycle, adapter.get()))
            .differences);
  }
  if (reference) add(check_reference(path, found.config(), *reference));
  return problems;
}

}  // namespace anabatic::train
