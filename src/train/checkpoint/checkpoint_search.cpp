// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/checkpoint_search.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/checksums.h"
#include "train/checkpoint/checkpoint_directory.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostNamedProblems = 3;  // of the problems of one checkpoint

// Files that a resume does not read, and that a user may change on purpose.
bool is_companion(const std::string& name) {
  return !name.ends_with(".safetensors") && !name.ends_with(".safetensors.index.json") &&
         name != kProgressFile && name != kRunConfigFile;
}

std::string joined(const std::vector<std::string>& problems) {
  std::string text;
  for (std::size_t i = 0; i < std::min(problems.size(), kMostNamedProblems); ++i)
    text += (i > 0 ? "; " : "") + problems[i];
  if (problems.size() > kMostNamedProblems)
    text += fmt::format("; and {} more", problems.size() - kMostNamedProblems);
  return text;
}

// The progress of a checkpoint, if it is undamaged.
CheckpointProgress read_whole_progress(const fs::path& checkpoint) {
  CheckpointProgress progress = read_progress(checkpoint);
  const auto manifest = io::read_checksums(checkpoint);
  ANABATIC_REQUIRE(manifest.has_value(), "{} is missing", io::kChecksumsFile);
  const auto written = manifest->find(kProgressFile);
  ANABATIC_REQUIRE(written != manifest->end(), "{} is not in {}", kProgressFile,
                   io::kChecksumsFile);
  const auto problems = io::damage_of(checkpoint / kProgressFile, written->second, 1);
  ANABATIC_REQUIRE(problems.empty(), "{}", joined(problems));
  return progress;
}

// A remark if OUTPUT/latest names another checkpoint than the one found.
std::string remark_on_latest(const fs::path& output, const fs::path& newest) {
  std::error_code ignored;
  const std::string name = newest.filename().string();
  if (!fs::exists(output / "latest", ignored))
    return fmt::format("latest is missing; {} is the newest whole checkpoint", name);
  const auto latest = latest_checkpoint(output);
  if (!latest)
    return fmt::format("latest names no checkpoint that is there; {} is the newest whole one",
                       name);
  if (latest->filename() == newest.filename()) return "";
  return fmt::format("latest names {}; {} is the newest whole checkpoint",
                     latest->filename().string(), name);
}

}  // namespace

std::vector<std::string> problems_of_checkpoint(const fs::path& checkpoint, CheckpointDepth depth,
                                                int threads) {
  try {
    const auto manifest = io::read_checksums(checkpoint);
    if (!manifest) return {fmt::format("{} is missing", io::kChecksumsFile)};
    std::vector<std::string> problems, needed{kProgressFile, kRunConfigFile};
    const BoxMap boxes = read_progress(checkpoint).boxes;
    std::ranges::move(boxes.empty() ? std::vector<std::string>{kStatesFile} : files_of(boxes),
                      std::back_inserter(needed));
    for (const std::string& file : needed)
      if (!manifest->contains(file))
        problems.push_back(fmt::format("{} is not in {}", file, io::kChecksumsFile));
    for (const auto& [name, written] : *manifest) {
      if (is_companion(name)) continue;
      std::error_code error;
      const auto size = fs::file_size(checkpoint / name, error);
      if (error) {
        problems.push_back(fmt::format("{} is missing", name));
      } else if (static_cast<std::int64_t>(size) != written.bytes) {
        problems.push_back(
            fmt::format("{} holds {} bytes, {} were written", name, size, written.bytes));
      } else if (depth == CheckpointDepth::kAll) {
        for (std::string& problem : io::damage_of(checkpoint / name, written, threads))
          problems.push_back(std::move(problem));
      }
    }
    return problems;
  } catch (const Error& error) {
    return {error.what()};
  }
}

CheckpointSearch find_newest_checkpoint(const fs::path& output, CheckpointDepth depth,
                                        int threads) {
  CheckpointSearch search;
  std::vector<FoundCheckpoint> candidates;
  std::vector<std::pair<std::int64_t, std::string>> passed_over;  // step and why
  const auto pass_over = [&](const fs::path& directory, std::int64_t step, const std::string& why) {
    passed_over.emplace_back(step,
                             fmt::format("checkpoint {} {}", directory.filename().string(), why));
  };
  for (const NamedCheckpoint& checkpoint : named_checkpoints(output)) {
    search.holds_any = true;
    try {
      candidates.push_back({checkpoint.directory, read_whole_progress(checkpoint.directory)});
    } catch (const Error& error) {
      pass_over(checkpoint.directory, checkpoint.step, fmt::format("is no use: {}", error.what()));
    }
  }
  const auto began = [](const FoundCheckpoint& a) { return a.progress.run.started_milliseconds; };
  const auto last =
      std::max_element(candidates.begin(), candidates.end(),
                       [&](const auto& a, const auto& b) { return began(a) < began(b); });
  const RunIdentity run = last == candidates.end() ? RunIdentity{} : last->progress.run;
  for (auto candidate = candidates.rbegin(); candidate != candidates.rend(); ++candidate) {
    if (candidate->progress.run != run) continue;
    const auto problems = problems_of_checkpoint(candidate->directory, depth, threads);
    if (problems.empty()) {
      search.newest = std::move(*candidate);
      break;
    }
    pass_over(candidate->directory, candidate->progress.step,
              fmt::format("is damaged: {}", joined(problems)));
  }
  const std::int64_t newest = search.newest ? search.newest->progress.step : -1;
  std::sort(passed_over.rbegin(), passed_over.rend());
  for (auto& [step, why] : passed_over)
    if (step > newest) search.remarks.push_back(std::move(why));
  if (!search.newest) return search;
  if (std::string remark = remark_on_latest(output, search.newest->directory); !remark.empty())
    search.remarks.push_back(std::move(remark));
  return search;
}

std::string model_path_of(const std::string& path) {
  std::error_code ignored;
  if (path.empty() || !fs::is_directory(path, ignored) ||
      fs::exists(fs::path(path) / "config.json"))
    return path;
  const CheckpointSearch found = find_newest_checkpoint(path, CheckpointDepth::kFiles, 1);
  if (!found.newest) return path;
  for (const std::string& remark : found.remarks) log_warning("[checkpoint] {}", remark);
  const std::string newest = found.newest->directory.string();
  log_info("model: {}, the newest checkpoint of {}", newest, path);
  return newest;
}

}  // namespace anabatic::train
