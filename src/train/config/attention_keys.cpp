// SPDX-License-Identifier: Apache-2.0
#include "train/config/attention_keys.h"

#include <algorithm>

#include "train/attention/key_blocks.h"
#include "train/config/config_key.h"

namespace anabatic::train {
namespace {

using Blocks = RunConfig::Attention::Blocks;

constexpr std::int64_t kMostBlock = std::int64_t{1} << 30;

ConfigKey count(const char* name, const char* help, std::int64_t Blocks::*field) {
  return integer(
      name, help, 0, [=](RunConfig & config) -> auto& { return config.attention.blocks.*field; },
      kMostBlock);
}

}  // namespace

void add_attention_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(or_word(
      or_word(integer("attention.blocks.size",
                      "Keys of a block. Rows attend to some blocks of keys alone, which the other "
                      "keys of attention.blocks choose, in every layer and within its window. "
                      "Blocks count from the beginning of a document. off is attention to all "
                      "keys, auto what model.path was trained with.",
                      1, AT(attention.blocks.size), kMostBlock),
              "off", Blocks::kOff, AT(attention.blocks.size)),
      "auto", Blocks::kOfModel, AT(attention.blocks.size)));
  keys.push_back(count("attention.blocks.local",
                       "A row attends to so many blocks up to its own, which is always one of "
                       "them.",
                       &Blocks::local));
  keys.push_back(count("attention.blocks.global",
                       "A row attends to the first blocks of its document, so many.",
                       &Blocks::global));
  keys.push_back(count("attention.blocks.stride",
                       "A row attends to every so many-th block of its document: with 4 to the "
                       "4th, the 8th and so on. 0 is none.",
                       &Blocks::stride));
  keys.push_back(count("attention.blocks.random",
                       "A row attends to so many blocks before its own, which are drawn for each "
                       "block of rows.",
                       &Blocks::random));
  keys.push_back(
      integer("attention.blocks.seed", "Seed of these draws.", 0, AT(attention.blocks.seed)));
  keys.push_back(
      string("attention.blocks.file",
             "In place of these: a .npy file of bool [heads or 1, blocks, blocks]. Row i "
             "of it has the blocks of keys that block i of rows attends to. Those after "
             "a block count for nothing, for attention is causal.",
             AT(attention.blocks.file)));
}

void add_attention_problems(const RunConfig& config, std::vector<std::string>& problems) {
  const Blocks& blocks = config.attention.blocks;
  std::vector<std::string> given;
  const auto note = [&](const char* key, bool is_given) {
    if (is_given) given.emplace_back(fmt::format("attention.blocks.{}", key));
  };
  note("local", blocks.local > 0);
  note("global", blocks.global > 0);
  note("stride", blocks.stride > 0);
  note("random", blocks.random > 0);
  const bool has_rule = !given.empty(), has_file = !blocks.file.empty();
  note("file", has_file);
  note("seed", blocks.seed != 0);
  if (blocks.size == Blocks::kOfModel || blocks.size == Blocks::kOff) {
    if (!given.empty())
      problems.push_back(fmt::format(
          "attention.blocks.size: expected keys of a block, such as 64, with {}, got {}",
          joined(given, ", "), blocks.size == Blocks::kOff ? "off" : "auto"));
    return;
  }
  if (!has_rule && !has_file)
    problems.push_back(
        fmt::format("attention.blocks.local: expected at least 1, or one of global, stride, random "
                    "and file, with attention.blocks.size: {}, got 0",
                    blocks.size));
  if (blocks.seed != 0 && blocks.random == 0)
    problems.push_back(fmt::format(
        "attention.blocks.seed: expected 0 without attention.blocks.random, got {}", blocks.seed));
  if (!has_file) return;
  if (has_rule) {
    given.erase(std::find(given.begin(), given.end(), "attention.blocks.file"), given.end());
    problems.push_back(fmt::format("attention.blocks.file: expected none with {}, got {}",
                                   joined(given, ", "), blocks.file));
  }
  try {
    (void)read_block_mask(blocks.file);
  } catch (const Error& error) {
    problems.push_back(fmt::format("attention.blocks.file: {}", error.what()));
  }
}

}  // namespace anabatic::train
