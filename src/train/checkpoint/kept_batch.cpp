// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/kept_batch.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <optional>
#include <utility>

#include "anabatic/error.h"
#include "train/checkpoint/checkpoint_search.h"
#include "train/ranks/run_mesh.h"

namespace anabatic::train {
namespace {

std::int64_t data_ranks(const RunConfig& run) {
  const RunConfig::Parallel& axes = run.parallel;
  return std::max<std::int64_t>(num_ranks(run) / (axes.tensor * axes.context * axes.pipeline), 1);
}

struct Saved {
  FoundCheckpoint checkpoint;
  RunConfig run;
};

// Nothing where begin_run() will not resume, or will say what is wrong.
std::optional<Saved> newest_in(const RunConfig& run) {
  std::error_code none;
  if (run.train.resume == "never" || !std::filesystem::is_directory(run.train.output, none))
    return std::nullopt;
  try {
    CheckpointSearch search = find_newest_checkpoint(run.train.output, CheckpointDepth::kFiles, 1);
    if (!search.newest) return std::nullopt;
    RunConfig saved = load_run_config(search.newest->directory / kRunConfigFile, {});
    return Saved{*std::move(search.newest), std::move(saved)};
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::int64_t micro_batches_of_step(const RunConfig& run) {
  return run.train.gradient_accumulation_steps * run.parallel.local_ranks;
}

std::int64_t gradient_leaves(const RunConfig& run) {
  return run.train.gradient_leaves == RunConfig::Train::kOneADataRank ? data_ranks(run)
                                                                      : run.train.gradient_leaves;
}

KeptBatch keep_batch(RunConfig run) {
  KeptBatch kept{.run = std::move(run)};
  const std::optional<Saved> newest = newest_in(kept.run);
  if (!newest) return kept;
  RunConfig::Train& train = kept.run.train;
  const RunConfig& saved = newest->run;
  const std::string directory = newest->checkpoint.directory.string();
  const std::int64_t asked = newest->checkpoint.progress.asked_accumulation.value_or(
      saved.train.gradient_accumulation_steps);
  const std::int64_t micro_batches = micro_batches_of_step(saved),
                     ranks = kept.run.parallel.local_ranks;
  if (train.gradient_accumulation_steps == asked && micro_batches % ranks == 0 &&
      micro_batches_of_step(kept.run) != micro_batches) {
    train.gradient_accumulation_steps = micro_batches / ranks;
    kept.messages.push_back(fmt::format(
        "train.gradient_accumulation_steps is {} instead of {}: {} ranks go on with the {} "
        "micro-batches a step of {}",
        train.gradient_accumulation_steps, asked, ranks, micro_batches, directory));
  }
  const std::int64_t leaves = gradient_leaves(saved), here = data_ranks(kept.run);
  if (train.gradient_leaves == RunConfig::Train::kOneADataRank && leaves != here &&
      leaves % here == 0 && std::has_single_bit(static_cast<std::uint64_t>(leaves / here)) &&
      train.gradient_accumulation_steps % (leaves / here) == 0 &&
      micro_batches_of_step(kept.run) == micro_batches) {
    train.gradient_leaves = leaves;
    kept.messages.push_back(fmt::format(
        "train.gradient_leaves is {}, as at {}: sums keep their order; {} saves the buffers "
        "that this takes",
        leaves, directory, here));
  }
  return kept;
}

}  // namespace anabatic::train
