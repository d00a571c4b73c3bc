// SPDX-License-Identifier: Apache-2.0
#include "train/attention/key_blocks.h"

#include <algorithm>

#include "base/error.h"
#include "base/json_node.h"
#include "base/log.h"
#include "base/text.h"
#include "io/data/fingerprint.h"
#include "io/gguf.h"
#include "io/npy.h"
#include "train/model_session.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using Blocks = RunConfig::Attention::Blocks;

constexpr std::int64_t kMostRecordBytes = std::int64_t{1} << 20;

std::vector<std::int64_t> heads_of(const model::ModelConfig& config) {
  std::vector<std::int64_t> heads;
  for (const auto* layers : {&config.spec.layers, &config.spec.mtp})
    for (const model::LayerSpec& layer : *layers)
      heads.push_back(
          std::visit([](const auto& attention) { return attention.num_heads; }, layer.attention));
  return heads;
}

void require_heads(const spec::BlockPattern& pattern, const model::ModelConfig& config,
                   const std::string& file) {
  for (const std::int64_t heads : heads_of(config))
    ANABATIC_REQUIRE(
        pattern.groups() == 1 || pattern.groups() == heads,
        "[attention] attention.blocks.file: {}: expected 1 or {}, as many as the model "
        "has heads, in front of the blocks, got {}",
        file, heads, pattern.groups());
}

std::optional<spec::BlockPattern> pattern_by_keys(const Blocks& keys) {
  if (keys.size == Blocks::kOfModel || keys.size == Blocks::kOff) return std::nullopt;
  spec::BlockPattern pattern{.size = keys.size,
                             .local = keys.local,
                             .global = keys.global,
                             .stride = keys.stride,
                             .random = keys.random,
                             .seed = static_cast<std::uint64_t>(keys.seed)};
  if (!keys.file.empty())
    pattern.mask = std::make_shared<const spec::BlockMask>(read_block_mask(keys.file));
  return pattern;
}

// What the weights were trained with: those of an adapter, which count more, or of the model.
std::optional<spec::BlockPattern> recorded_pattern(const RunConfig& run) {
  for (const std::string& adapter : {run.model.adapter, run.lora.from})
    if (!adapter.empty())
      if (auto pattern = find_key_blocks(adapter)) return pattern;
  if (io::is_gguf(run.model.path)) return std::nullopt;
  return find_key_blocks(model_directory(run.model.path));
}

}  // namespace

spec::BlockMask read_block_mask(const fs::path& file) {
  io::BoolArray array = io::read_npy_bool(file);
  const std::vector<std::int64_t>& shape = array.shape;
  ANABATIC_REQUIRE(shape.size() == 3 && shape[0] > 0 && shape[1] > 0 && shape[1] == shape[2],
                   "{}: expected shape [heads or 1, blocks, blocks], got {}", file.string(),
                   io::shape_text(shape));
  const std::int64_t groups = shape[0], blocks = shape[1];
  for (std::int64_t group = 0; group < groups; ++group)
    for (std::int64_t block = 0; block < blocks; ++block)
      ANABATIC_REQUIRE(
          array.values[static_cast<std::size_t>((group * blocks + block) * blocks + block)] != 0,
          "{}: expected each block to have itself, got False at [{}, {}, {}]", file.string(), group,
          block, block);
  return {.groups = groups, .blocks = blocks, .listed = std::move(array.values)};
}

std::shared_ptr<const spec::BlockPattern> key_blocks_of(const RunConfig& run,
                                                        const model::ModelConfig& config) {
  const Blocks& keys = run.attention.blocks;
  std::optional<spec::BlockPattern> pattern = pattern_by_keys(keys);
  if (keys.size == Blocks::kOfModel) pattern = recorded_pattern(run);
  if (!pattern || pattern->size == 0) return nullptr;
  require_heads(*pattern, config, keys.file.empty() ? kBlockMaskFile : keys.file);
  return std::make_shared<const spec::BlockPattern>(std::move(*pattern));
}

void record_key_blocks(const RunConfig& run, const model::ModelConfig& config,
                       const fs::path& directory) {
  if (config.key_blocks) return write_key_blocks(directory, *config.key_blocks);
  // Else a reader of the adapter would take the pattern of the model under it.
  if (config.adapter && run.attention.blocks.size == Blocks::kOff) write_key_blocks(directory, {});
}

void write_key_blocks(const fs::path& directory, const spec::BlockPattern& pattern) {
  const Json record{{"size", pattern.size},
                    {"local", pattern.local},
                    {"global", pattern.global},
                    {"stride", pattern.stride},
                    {"random", pattern.random},
                    {"seed", pattern.seed},
                    {"file", pattern.mask ? Json(kBlockMaskFile) : Json()}};
  if (pattern.mask)
    write_file_atomically(
        directory / kBlockMaskFile,
        io::to_npy({.shape = {pattern.mask->groups, pattern.mask->blocks, pattern.mask->blocks},
                    .values = pattern.mask->listed}));
  write_file_atomically(directory / kKeyBlocksFile, dump_json(record) + "\n");
}

std::optional<spec::BlockPattern> find_key_blocks(const fs::path& directory) {
  const fs::path file = directory / kKeyBlocksFile;
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return std::nullopt;
  const std::string place = fmt::format("[attention] {}", file.string());
  const Json json = parse_json_object(read_file(file, kMostRecordBytes), place);
  const JsonNode top(json, place);
  const auto count = [&](const char* name, std::int64_t least) {
    return top.at(name).as_integer(least);
  };
  spec::BlockPattern pattern{.size = count("size", 0),
                             .local = count("local", 0),
                             .global = count("global", 0),
                             .stride = count("stride", 0),
                             .random = count("random", 0),
                             .seed = static_cast<std::uint64_t>(count("seed", 0))};
  if (top.find("file"))
    pattern.mask =
        std::make_shared<const spec::BlockMask>(read_block_mask(directory / kBlockMaskFile));
  return pattern;
}

Json key_blocks_contents(const RunConfig& run) {
  Json contents = Json::object();
  const std::string& file = run.attention.blocks.file;
  if (!file.empty()) contents["attention.blocks.file"] = io::content_hash(read_file(file));
  if (run.attention.blocks.size == Blocks::kOfModel)
    if (const auto recorded = recorded_pattern(run))
      contents["attention.blocks of the model"] = key_blocks_identity(*recorded);
  return contents;
}

std::string key_blocks_identity(const spec::BlockPattern& pattern) {
  if (!pattern.mask)
    return fmt::format("size {}, {}, seed {}", pattern.size, pattern.to_string(), pattern.seed);
  const std::vector<std::uint8_t>& listed = pattern.mask->listed;
  return fmt::format("size {}, {}, {}", pattern.size, pattern.to_string(),
                     io::content_hash(std::string_view(reinterpret_cast<const char*>(listed.data()),
                                                       listed.size())));
}

std::string key_blocks_text(const model::ModelConfig& config, std::int64_t num_tokens) {
  if (!config.key_blocks) return "";
  const spec::BlockPattern& pattern = *config.key_blocks;
  const spec::BlockLists lists = model::key_block_lists(pattern, num_tokens);
  const std::int64_t places = std::min(num_tokens, lists.blocks * lists.size);
  return fmt::format("blocks of {} keys, {}: {:.1f} % of the pairs of a document of {} tokens",
                     pattern.size, pattern.to_string(), 100 * lists.density(places, 0), places);
}

double unmasked_pairs(const model::ModelConfig& config, const io::MicroBatch& batch,
                      std::int64_t window) {
  double pairs = 0;
  std::int32_t longest = 0;
  for (std::size_t i = 0; i < batch.key_begin.size(); ++i) {
    const std::int32_t keys = batch.key_end[i] - batch.key_begin[i];
    longest = std::max(longest, keys);
    pairs += window > 0 ? std::min<double>(keys, static_cast<double>(window)) : keys;
  }
  if (!config.key_blocks) return pairs;
  const spec::BlockLists lists = model::key_block_lists(*config.key_blocks, longest);
  std::vector<double> by_place(static_cast<std::size_t>(longest));
  for (std::size_t place = 0; place < by_place.size(); ++place)
    by_place[place] = lists.listed_keys(static_cast<std::int64_t>(place), window);
  pairs = 0;
  for (std::size_t i = 0; i < batch.key_begin.size(); ++i)
    if (const std::int32_t keys = batch.key_end[i] - batch.key_begin[i]; keys > 0)
      pairs += by_place[static_cast<std::size_t>(keys - 1)];
  return pairs;
}

}  // namespace anabatic::train
