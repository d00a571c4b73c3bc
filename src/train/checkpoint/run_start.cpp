// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/run_start.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "train/adaptive/run_precision.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_search.h"
#include "train/checkpoint/run_contents.h"
#include "train/convert/manifest.h"
#include "train/metrics.h"
#include "train/record/run_record.h"
#include "train/record/windows_log.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

// Logs are of one run each; what an earlier one wrote stays readable.
void set_logs_aside(const fs::path& output, std::vector<std::string>& messages) {
  std::vector<fs::path> logs;
  for (const auto& entry : fs::directory_iterator(output)) {
    const std::string name = entry.path().filename().string();
    const bool is_log = name == "metrics.jsonl" || name == "validation.jsonl" ||
                        name.starts_with(kRankMetrics) || name == kWindowsFile ||
                        name == kAdaptiveFile || name.starts_with("events.out.tfevents.");
    std::error_code ignored;
    if (is_log && fs::file_size(entry.path(), ignored) > 0) logs.push_back(entry.path());
  }
  // The records of a run are moved only together with its logs.
  if (!logs.empty() && fs::exists(output / kRunRecordFile)) logs.push_back(output / kRunRecordFile);
  // That of a model directory is of its conversion.
  if (!logs.empty() && fs::exists(output / kManifestFile) && !fs::exists(output / "config.json"))
    logs.push_back(output / kManifestFile);
  fs::path folder;
  for (const fs::path& log : logs) folder = set_aside(log).parent_path();
  if (!logs.empty())
    messages.push_back(fmt::format("logs of an earlier run are now in {}", folder.string()));
}

void begin_afresh(const RunConfig& run, RunStart& start) {
  const fs::path output = run.train.output;
  start.run = new_run_identity();
  std::vector<std::string> names;
  for (const NamedCheckpoint& checkpoint : named_checkpoints(output))
    names.push_back(checkpoint.directory.filename().string());
  if (!names.empty())
    start.messages.push_back(fmt::format(
        "train.resume: never: a new run begins; the checkpoints of an earlier one stay in {}: {}",
        output.string(), fmt::join(names, ", ")));
  try {
    set_logs_aside(output, start.messages);
  } catch (const fs::filesystem_error& error) {
    throw ResourceError(
        fmt::format("[train] train.output: cannot move logs of an earlier run: {}: {}",
                    error.path1().string(), error.code().message()));
  }
}

void require_same_run(const RunConfig& run, const FoundCheckpoint& found, RunStart& start) {
  const ContentsChange contents = compare_contents(found.progress.contents, start.contents);
  const ContentsChange keys =
      compare_keys(load_run_config(found.directory / kRunConfigFile, {}), run);
  const std::string data = run.train.allow_changed_data ? "" : contents.data;
  const std::string hint =
      data.empty() ? "" : "; train.allow_changed_data: true resumes with the data as they are now";
  ANABATIC_REQUIRE(contents.maths.empty() && keys.maths.empty() && data.empty(),
                   "[checkpoint] {} cannot be resumed by another run (choose another train.output, "
                   "or train.resume: never for a new run there{}):{}{}{}",
                   found.directory.string(), hint, keys.maths, contents.maths,
                   data.empty() ? "" : "\n  the training data:" + data);
  if (!contents.data.empty())
    start.messages.push_back(
        "train.allow_changed_data: the training data are not those of the "
        "checkpoint:" +
        contents.data);
  for (const ContentsChange* change : {&contents, &keys})
    start.messages.insert(start.messages.end(), change->remarks.begin(), change->remarks.end());
}

}  // namespace

RunStart begin_run(const RunConfig& run) {
  const fs::path output = run.train.output;
  RunStart start;
  start.messages = remove_leftovers(output);
  start.contents = run_contents(run);
  if (run.train.resume == "never") {
    begin_afresh(run, start);
    return start;
  }
  CheckpointSearch search =
      find_newest_checkpoint(output, CheckpointDepth::kAll, num_threads_of(run));
  if (!search.newest) {
    ANABATIC_REQUIRE(!search.holds_any,
                     "[checkpoint] expected a whole checkpoint in {} to resume from, found none; "
                     "train.resume: never starts a new run and leaves them where they are:\n  {}",
                     output.string(), fmt::join(search.remarks, "\n  "));
    begin_afresh(run, start);
    return start;
  }
  require_same_run(run, *search.newest, start);
  start.messages.insert(start.messages.begin(), search.remarks.begin(), search.remarks.end());
  start.run = search.newest->progress.run;
  start.checkpoint = search.newest->directory;
  start.step = search.newest->progress.step;
  start.measured = search.newest->progress.measured;
  start.loss_scale = search.newest->progress.loss_scale;
  start.adaptive = search.newest->progress.adaptive;
  start.saved_base = search.newest->progress.contents.value("base", "");
  return start;
}

}  // namespace anabatic::train
