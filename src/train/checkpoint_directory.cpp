// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/text.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemporary = "incomplete-checkpoint";

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
  const fs::path aside = old.parent_path() / "replaced-checkpoint";
  fs::remove_all(aside);
  fs::rename(old, aside);
  fs::rename(fresh, old);
  fs::rename(aside, fresh);
}

std::vector<fs::path> checkpoints_in(const fs::path& output) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(output)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && name.starts_with("step-") && name.size() == 13)
      found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

void prune(const fs::path& output, const fs::path& newest, std::int64_t keep_last) {
  if (keep_last == 0) return;
  std::vector<fs::path> old;
  for (const fs::path& directory : checkpoints_in(output))
    if (directory != newest) old.push_back(directory);
  // Later steps than the newest are of a run that this one replaces: they go first.
  std::stable_partition(old.begin(), old.end(),
                        [&](const fs::path& directory) { return directory > newest; });
  const auto keep = static_cast<std::size_t>(keep_last - 1);
  for (std::size_t i = 0; i + keep < old.size(); ++i) fs::remove_all(old[i]);
}

}  // namespace

fs::path checkpoint_name(std::int64_t step) { return fmt::format("step-{:08}", step); }

std::optional<fs::path> latest_checkpoint(const fs::path& output) {
  const fs::path pointer = output / "latest";
  if (!fs::exists(pointer)) return std::nullopt;
  std::string name = read_file(pointer, 4096);
  name.erase(name.find_last_not_of(" \n\r\t") + 1);
  ANABATIC_REQUIRE(!name.empty() && name.find('/') == std::string::npos,
                   "[checkpoint] expected a directory's name in {}, got '{}'", pointer.string(),
                   name);
  ANABATIC_REQUIRE(fs::is_directory(output / name),
                   "[checkpoint] {} names '{}', which is not a directory of {}", pointer.string(),
                   name, output.string());
  return output / name;
}

fs::path commit_checkpoint(const fs::path& output, std::int64_t step, std::int64_t keep_last,
                           const std::function<void(const fs::path&)>& write) {
  fs::create_directories(output);
  const fs::path temporary = output / kTemporary;
  fs::remove_all(temporary);
  fs::create_directory(temporary);
  write(temporary);
  for (const auto& entry : fs::directory_iterator(temporary)) sync_path(entry.path());
  sync_path(temporary);

  const fs::path target = output / checkpoint_name(step);
  if (fs::exists(target)) {
    exchange(temporary, target);
    fs::remove_all(temporary);
  } else {
    fs::rename(temporary, target);
  }
  sync_path(output);
  write_file_atomically(output / "latest", target.filename().string() + "\n");
  prune(output, target, keep_last);
  return target;
}

}  // namespace anabatic::train
