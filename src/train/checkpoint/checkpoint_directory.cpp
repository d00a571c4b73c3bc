// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/checkpoint_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"
#include "train/checkpoint/checkpoint_progress.h"
#include "train/metrics.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemporary = "incomplete-checkpoint";
constexpr const char* kReplaced = "replaced-checkpoint";
constexpr std::string_view kStepPrefix = "step-";
constexpr std::size_t kDigits = 8;  // at least

void sync_path(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool ok = descriptor >= 0 && ::fsync(descriptor) == 0;
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (!ok)
    throw ResourceError(
        fmt::format("[checkpoint] cannot fsync {}: {}", path.string(), std::strerror(error)));
}

// Swaps two directories at once, so that a name in OUTPUT/latest never names nothing: a rename
// cannot replace a full directory. Where the file system cannot swap, the old one moves aside
// first.
void exchange(const fs::path& fresh, const fs::path& old) {
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, old.c_str(), RENAME_EXCHANGE) == 0) return;
  const fs::path aside = old.parent_path() / kReplaced;
  fs::remove_all(aside);
  fs::rename(old, aside);
  fs::rename(fresh, old);
  fs::rename(aside, fresh);
}

bool is_of_run(const fs::path& checkpoint, const std::string& run_id) {
  try {
    return read_progress(checkpoint).run.id == run_id;
  } catch (const Error&) {
    return false;
  }
}

void prune(const fs::path& output, std::int64_t newest, const Retention& retention) {
  if (retention.keep_last == 0) return;
  std::vector<NamedCheckpoint> old;
  for (NamedCheckpoint& checkpoint : checkpoints_of_run(output, retention.run_id)) {
    std::error_code ignored;
    if (checkpoint.step == newest ||
        fs::equivalent(checkpoint.directory, retention.in_use, ignored))
      continue;
    old.push_back(std::move(checkpoint));
  }
  // Later steps than the newest were passed over by a resume, as they are damaged: they go first.
  std::stable_partition(old.begin(), old.end(), [&](const NamedCheckpoint& checkpoint) {
    return checkpoint.step > newest;
  });
  const auto keep = static_cast<std::size_t>(retention.keep_last - 1);
  for (std::size_t i = 0; i + keep < old.size(); ++i) fs::remove_all(old[i].directory);
}

fs::path commit(const fs::path& output, std::int64_t step, const Retention& retention,
                const std::function<void(const fs::path&)>& write) {
  fs::create_directories(output);
  const fs::path temporary = output / kTemporary, target = output / checkpoint_name(step);
  fs::remove_all(temporary);
  fs::create_directory(temporary);
  write(temporary);
  for (const auto& entry : fs::directory_iterator(temporary)) sync_path(entry.path());
  sync_path(temporary);

  if (fs::exists(target) && !is_of_run(target, retention.run_id)) set_aside(target);
  if (fs::exists(target)) {
    exchange(temporary, target);
    fs::remove_all(temporary);
  } else {
    fs::rename(temporary, target);
  }
  sync_path(output);
  write_file_atomically(output / "latest", target.filename().string() + "\n");
  prune(output, step, retention);
  return target;
}

// A checkpoint whose place a newer one was about to take goes back there.
std::string restore_replaced(const fs::path& output) {
  const fs::path replaced = output / kReplaced;
  std::string name;
  try {
    // The name is what read_progress compares with: any step's.
    const Json json = try_parse_json(read_file(replaced / kProgressFile, 1 << 26));
    if (json.is_object() && json.contains("step") && json["step"].is_number_integer())
      name = checkpoint_name(json["step"].get<std::int64_t>());
  } catch (const Error&) {
  }
  if (name.empty() || fs::exists(output / name)) {
    fs::remove_all(replaced);
    return fmt::format("removed {}, left by a save that did not finish", replaced.string());
  }
  fs::rename(replaced, output / name);
  return fmt::format("restored {}, which a save that did not finish had moved", name);
}

bool is_left_by_a_writer(const fs::path& path) {
  const std::string name = path.filename().string();
  for (const char* file :
       {"latest.", "plan.txt.", "metrics.jsonl.", "validation.jsonl.", kRankMetrics})
    if (name.starts_with(file) && name.ends_with(".tmp")) return true;
  // A scratch file loses its name as soon as it is open.
  return name.starts_with("anabatic-swap-");
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("{}{:0{}}", kStepPrefix, step, kDigits);
}

std::vector<NamedCheckpoint> named_checkpoints(const fs::path& output) {
  std::vector<NamedCheckpoint> found;
  std::error_code error;
  for (fs::directory_iterator entry(output, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (!name.starts_with(kStepPrefix) || name.size() < kStepPrefix.size() + kDigits ||
        !entry->is_directory(ignored))
      continue;
    std::int64_t step = 0;
    const char* last = name.data() + name.size();
    const auto [stop, problem] = std::from_chars(name.data() + kStepPrefix.size(), last, step);
    if (problem == std::errc{} && stop == last && step >= 0 && checkpoint_name(step) == name)
      found.push_back({step, entry->path()});
  }
  std::sort(found.begin(), found.end(),
            [](const NamedCheckpoint& a, const NamedCheckpoint& b) { return a.step < b.step; });
  return found;
}

std::vector<NamedCheckpoint> checkpoints_of_run(const fs::path& output, const std::string& run_id) {
  std::vector<NamedCheckpoint> found = named_checkpoints(output);
  std::erase_if(found, [&](const NamedCheckpoint& checkpoint) {
    return !is_of_run(checkpoint.directory, run_id);
  });
  return found;
}

std::optional<fs::path> latest_checkpoint(const fs::path& output) {
  const fs::path pointer = output / "latest";
  std::error_code ignored;
  if (!fs::is_regular_file(pointer, ignored)) return std::nullopt;
  std::string name = read_file(pointer, 4096);
  name.erase(name.find_last_not_of(" \n\r\t") + 1);
  if (name.empty() || name.find('/') != std::string::npos ||
      !fs::is_directory(output / name, ignored))
    return std::nullopt;
  return output / name;
}

fs::path commit_checkpoint(const fs::path& output, std::int64_t step, const Retention& retention,
                           const std::function<void(const fs::path&)>& write) {
  const auto clear = [&] {
    std::error_code ignored;
    fs::remove_all(output / kTemporary, ignored);
  };
  try {
    return commit(output, step, retention, write);
  } catch (const fs::filesystem_error& error) {
    clear();
    throw ResourceError(fmt::format("[checkpoint] cannot save step {}: {}: {}", step,
                                    error.path1().string(), error.code().message()));
  } catch (...) {
    clear();
    throw;
  }
}

fs::path set_aside(const fs::path& path) {
  for (std::int64_t k = 1;; ++k) {
    const fs::path folder = path.parent_path() / fmt::format("before-{}", k);
    const fs::path place = folder / path.filename();
    if (fs::exists(fs::symlink_status(place))) continue;
    fs::create_directories(folder);
    fs::rename(path, place);
    return place;
  }
}

std::vector<std::string> remove_leftovers(const fs::path& output) {
  std::vector<std::string> lines;
  try {
    if (fs::exists(output / kReplaced)) lines.push_back(restore_replaced(output));
    std::vector<fs::path> left;
    for (const auto& entry : fs::directory_iterator(output))
      if (entry.path().filename() == kTemporary || is_left_by_a_writer(entry.path()))
        left.push_back(entry.path());
    for (const fs::path& path : left) {
      fs::remove_all(path);
      lines.push_back(fmt::format("removed {}, left by a save that did not finish", path.string()));
    }
  } catch (const fs::filesystem_error& error) {
    throw ResourceError(
        fmt::format("[train] train.output: cannot remove what an earlier run left: {}: {}",
                    error.path1().string(), error.code().message()));
  }
  return lines;
}

}  // namespace anabatic::train
