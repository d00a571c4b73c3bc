// SPDX-License-Identifier: Apache-2.0
// The pattern of block-sparse attention that a run has: by its keys, or by the record in the
// directory of a model that was trained with one, anabatic.attention.json.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "io/data/loader.h"
#include "model/model.h"
#include "spec/key_blocks.h"
#include "train/run_config.h"

namespace anabatic::train {

inline constexpr const char* kKeyBlocksFile = "anabatic.attention.json";
inline constexpr const char* kBlockMaskFile = "anabatic.attention.npy";  // of a pattern by a mask

// A mask of attention.blocks.file. InvalidArgument, which begins with the path, names what it has
// in place of bool [groups, blocks, blocks] with each block's own among those that it lists.
spec::BlockMask read_block_mask(const std::filesystem::path& file);

// The pattern of this run for this model, null without one. InvalidArgument where a mask has other
// heads than its layers.
std::shared_ptr<const spec::BlockPattern> key_blocks_of(const RunConfig& run,
                                                        const model::ModelConfig& config);

// Writes what a reader of the weights in a directory has to know of the pattern of this run.
void record_key_blocks(const RunConfig& run, const model::ModelConfig& config,
                       const std::filesystem::path& directory);

// Writes a pattern for find_key_blocks; without a size it is attention to all keys.
void write_key_blocks(const std::filesystem::path& directory, const spec::BlockPattern& pattern);
// Nothing where there is no record. InvalidArgument where it does not say what it has to.
std::optional<spec::BlockPattern> find_key_blocks(const std::filesystem::path& directory);

// What a checkpoint remembers of a mask, and of the pattern that its model brings.
Json key_blocks_contents(const RunConfig& run);

// Whatever decides which keys a row reads, as text.
std::string key_blocks_identity(const spec::BlockPattern& pattern);

// "blocks of 64 keys, local 8, global 1: 23.4 % of the pairs of a document of 8192 tokens"; "" for
// none.
std::string key_blocks_text(const model::ModelConfig& config, std::int64_t num_tokens);

// Pairs of a row and a key that a layer with this window reads, the mean over its heads.
double unmasked_pairs(const model::ModelConfig& config, const io::MicroBatch& batch,
                      std::int64_t window);

}  // namespace anabatic::train
