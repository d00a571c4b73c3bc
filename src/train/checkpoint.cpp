// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "train/checkpoint_directory.h"
#include "train/state_rows.h"
#include "train/state_tiers.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

constexpr int kFormat = 1;
constexpr const char* kStates = "training_state.safetensors";
constexpr const char* kProgress = "training_state.json";
constexpr const char* kRunConfig = "run_config.yaml";

// Files beside config.json that Hugging Face reads: copied so that a checkpoint is a model
// directory of its own.
constexpr const char* kCompanions[] = {"config.json",
                                       "generation_config.json",
                                       "tokenizer.json",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "tokenizer.model",
                                       "vocab.json",
                                       "merges.txt",
                                       "added_tokens.json",
                                       "chat_template.jinja"};

void copy_companions(const fs::path& from, const fs::path& to) {
  for (const char* name : kCompanions)
    if (fs::exists(from / name))
      fs::copy_file(from / name, to / name, fs::copy_options::overwrite_existing);
}

std::vector<std::int64_t> sizes_of(const TensorType& type) {
  std::vector<std::int64_t> sizes;
  for (const Dim& dim : type.shape) sizes.push_back(dim.bound);
  return sizes;
}

// Everything that the next step starts from, under the engine's own names: fp32 masters and
// moments.
void write_states(const fs::path& file, ModelSession& session) {
  std::vector<io::TensorInfo> infos;
  for (const SavedState& state : session.saved_states())
    infos.push_back({std::string(text(state.name)), state.type.dtype, sizes_of(state.type)});
  io::SafetensorsWriter writer = io::SafetensorsWriter::single_file(file, infos);
  for (const SavedState& state : session.saved_states())
    for_state_bytes(session.store(), state, [&](std::span<const std::byte> block) {
      writer.write(text(state.name), block);
    });
  writer.finish();
}

void read_states(const fs::path& file, ModelSession& session) {
  const io::SafetensorsDirectory source = io::SafetensorsDirectory::open(file);
  std::string problems;
  std::vector<std::string> wanted;
  for (const SavedState& state : session.saved_states()) {
    const auto& [name, type, slices] = state;
    wanted.emplace_back(text(name));
    const io::TensorEntry* entry = source.find(text(name));
    if (entry == nullptr) {
      problems += fmt::format("\n  {}: missing", text(name));
    } else if (entry->dtype != type.dtype || entry->shape != sizes_of(type)) {
      problems += fmt::format("\n  {}: expected {}, found {} [{}]", text(name), to_string(type),
                              entry->dtype_name, fmt::join(entry->shape, ","));
    }
  }
  for (const std::string& name : source.names())
    if (std::find(wanted.begin(), wanted.end(), name) == wanted.end())
      problems += fmt::format("\n  {}: surplus", name);
  ANABATIC_REQUIRE(problems.empty(), "[checkpoint] {} does not fit this model:{}", file.string(),
                   problems);
  for (const SavedState& state : session.saved_states()) {
    const std::span<const std::byte> bytes = source.find(text(state.name))->data;
    const std::int64_t size = size_bytes(state.type.dtype);
    fill_state(session.store(), state, [&](std::int64_t first, std::span<std::byte> block) {
      const auto from = bytes.subspan(static_cast<std::size_t>(first * size), block.size());
      std::copy(from.begin(), from.end(), block.begin());
      source.release(from);
    });
  }
}

// Settings that decide which numbers a step computes; the length of the run and its schedule may
// change on purpose.
const std::vector<std::string>& binding_keys() {
  static const std::vector<std::string> keys{"data.train",
                                             "data.sequence_length",
                                             "data.packing",
                                             "data.shuffle",
                                             "data.append_eos",
                                             "train.micro_batch_size",
                                             "train.gradient_accumulation_steps",
                                             "train.precision",
                                             "train.balance_loss",
                                             "train.balance_coef",
                                             "train.router_z_loss_coef",
                                             "train.seed",
                                             "memory.compress",
                                             "optimizer.state_precision",
                                             "optimizer.update"};
  return keys;
}

void require_same_run(const fs::path& checkpoint, const RunConfig& run) {
  const RunConfig saved = load_run_config(checkpoint / kRunConfig, {});
  std::string problems;
  for (const ConfigKey& key : config_keys()) {
    if (std::find(binding_keys().begin(), binding_keys().end(), key.name) == binding_keys().end())
      continue;
    if (key.show(saved) != key.show(run))
      problems += fmt::format("\n  {}: the checkpoint has {}, this run {}", key.name,
                              key.show(saved), key.show(run));
  }
  ANABATIC_REQUIRE(
      problems.empty(),
      "[checkpoint] {} cannot be resumed by another run (train.resume: never starts anew):{}",
      checkpoint.string(), problems);
}

nlohmann::json read_progress(const fs::path& file) {
  const auto json = try_parse_json(read_file(file, std::int64_t{1} << 20));
  const auto has_int = [&](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_number_integer();
  };
  ANABATIC_REQUIRE(has_int("format") && has_int("step"),
                   "[checkpoint] expected an object with format and step in {}", file.string());
  ANABATIC_REQUIRE(json["format"] == kFormat, "[checkpoint] {}: expected format {}, found {}",
                   file.string(), kFormat, show_json(json["format"]));
  return json;
}

}  // namespace

fs::path save_checkpoint(const fs::path& output, ModelSession& session,
                         const CheckpointState& state) {
  const RunConfig& run = session.run();
  return commit_checkpoint(output, state.step, run.train.keep_last, [&](const fs::path& directory) {
    session.export_model(directory);
    copy_companions(model_directory(run.model.path), directory);
    if (!fs::is_directory(run.model.path))  // a config.json of any name
      fs::copy_file(run.model.path, directory / "config.json",
                    fs::copy_options::overwrite_existing);
    write_states(directory / kStates, session);
    const nlohmann::ordered_json progress{
        {"format", kFormat}, {"step", state.step}, {"seed", run.train.seed}};
    write_file_atomically(directory / kProgress, dump_json(progress, 2) + "\n");
    write_file_atomically(directory / kRunConfig, to_yaml(run));
  });
}

CheckpointState load_checkpoint(const fs::path& directory, ModelSession& session) {
  require_same_run(directory, session.run());
  const nlohmann::json progress = read_progress(directory / kProgress);
  read_states(directory / kStates, session);
  session.adopt_weight_map(directory);
  return {.step = progress["step"].get<std::int64_t>()};
}

}  // namespace anabatic::train
