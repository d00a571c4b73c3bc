// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/checkpoint_progress.h"

#include <chrono>
#include <random>

#include "base/error.h"
#include "base/text.h"
#include "train/checkpoint/checkpoint_directory.h"

namespace anabatic::train {
namespace {

// 1: without checksums, contents and run; 2: of one rank; 3: with the boxes of several.
constexpr int kProgressFormat = 2, kFormatOfRanks = 3;
constexpr std::int64_t kMostProgressBytes = std::int64_t{1} << 26;

}  // namespace

RunIdentity new_run_identity() {
  std::random_device random;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {
      .id = fmt::format("{:08x}{:08x}", random(), random()),
      .started_milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now).count()};
}

void write_progress(const std::filesystem::path& checkpoint, const CheckpointProgress& progress) {
  OrderedJson json{
      {"format", progress.boxes.empty() ? kProgressFormat : kFormatOfRanks},
      {"step", progress.step},
      {"seed", progress.seed},
      {"run", {{"id", progress.run.id}, {"started", progress.run.started_milliseconds}}},
      {"contents", progress.contents}};
  if (!progress.boxes.empty()) json["tensors"] = to_json(progress.boxes);
  if (!progress.measured.is_null()) json["measured_exchanges"] = progress.measured;
  if (progress.asked_accumulation) json["asked_accumulation"] = *progress.asked_accumulation;
  if (!progress.loss_scale.is_null()) json["loss_scale"] = progress.loss_scale;
  if (!progress.adaptive.is_null()) json["adaptive"] = progress.adaptive;
  write_file_atomically(checkpoint / kProgressFile, dump_json(json, 2) + "\n");
}

CheckpointProgress read_progress(const std::filesystem::path& checkpoint) {
  const std::filesystem::path file = checkpoint / kProgressFile;
  ANABATIC_REQUIRE(std::filesystem::exists(file), "{} is missing", kProgressFile);
  const Json json = try_parse_json(read_file(file, kMostProgressBytes));
  const auto is_integer = [](const Json& object, const char* key) {
    return object.is_object() && object.contains(key) && object[key].is_number_integer();
  };
  ANABATIC_REQUIRE(is_integer(json, "format") && is_integer(json, "step"),
                   "expected an object with format and step in {}", kProgressFile);
  const bool is_of_ranks = json["format"] == kFormatOfRanks;
  ANABATIC_REQUIRE(is_of_ranks || json["format"] == kProgressFormat,
                   "{}: expected format {} or {}, found {}; another version of anabatic wrote it, "
                   "and only its weights can be used, as model.path",
                   kProgressFile, kProgressFormat, kFormatOfRanks, show_json(json["format"]));
  const Json run = json.value("run", Json());
  ANABATIC_REQUIRE(is_integer(json, "seed") && is_integer(run, "started") && run.contains("id") &&
                       run["id"].is_string() && json.contains("contents"),
                   "expected seed, run and contents in {}", kProgressFile);
  CheckpointProgress progress{
      .step = json["step"].get<std::int64_t>(),
      .seed = json["seed"].get<std::int64_t>(),
      .run = {run["id"].get<std::string>(), run["started"].get<std::int64_t>()},
      .contents = json["contents"],
      .boxes = is_of_ranks ? read_boxes(JsonNode(json, kProgressFile).at("tensors")) : BoxMap(),
      .measured = json.value("measured_exchanges", Json()),
      .loss_scale = json.value("loss_scale", Json()),
      .adaptive = json.value("adaptive", Json())};
  if (json.contains("asked_accumulation"))
    progress.asked_accumulation =
        JsonNode(json, kProgressFile).at("asked_accumulation").as_integer(1);
  ANABATIC_REQUIRE(checkpoint.filename() == checkpoint_name(progress.step),
                   "{} is of step {}, but the directory's name says otherwise", kProgressFile,
                   progress.step);
  return progress;
}

}  // namespace anabatic::train
