// SPDX-License-Identifier: Apache-2.0
#include "io/cache_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"

namespace anabatic::io {
namespace {

namespace fs = std::filesystem;

// Makes the folder for the user alone where it is missing. Returns why it is not fit for a cache,
// or "". A link to a folder elsewhere is, if both are the user's.
std::string make_private(const fs::path& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return fmt::format("cannot make {}: {}", path.string(), std::strerror(errno));
  struct stat link {};
  struct stat target {};
  if (::lstat(path.c_str(), &link) != 0 || ::stat(path.c_str(), &target) != 0)
    return fmt::format("cannot look at {}: {}", path.string(), std::strerror(errno));
  if (!S_ISDIR(target.st_mode)) return fmt::format("{} is no folder", path.string());
  if (link.st_uid != ::geteuid() || target.st_uid != ::geteuid())
    return fmt::format("{} belongs to another user", path.string());
  if ((target.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return fmt::format("others may write to {} (chmod go-w)", path.string());
  if (::access(path.c_str(), W_OK | X_OK) != 0)
    return fmt::format("cannot write to {}: {}", path.string(), std::strerror(errno));
  return "";
}

}  // namespace

std::shared_ptr<const CacheDirectory> CacheDirectory::of_user(const std::string& name) {
  const fs::path base = environment::cache_directory();
  std::string problem;
  if (base.empty() || !base.is_absolute()) {
    problem = "HOME and XDG_CACHE_HOME name no folder";
  } else {
    std::error_code error;
    fs::create_directories(base, error);
    if (error) problem = fmt::format("cannot make {}: {}", base.string(), error.message());
  }
  if (problem.empty()) problem = make_private(base / "anabatic");
  const fs::path path = base / "anabatic" / name;
  if (problem.empty()) problem = make_private(path);
  if (problem.empty())
    return std::shared_ptr<const CacheDirectory>(new CacheDirectory(path, false));
  auto directory = temporary();
  log_warning("[cache] {}; {} is used for this run alone, data.cache can name another folder",
              problem, directory->path().string());
  return directory;
}

std::shared_ptr<const CacheDirectory> CacheDirectory::at(const fs::path& path,
                                                         const std::string& key) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error || ::access(path.c_str(), W_OK | X_OK) != 0)
    throw ResourceError(
        fmt::format("[cache] {}: expected a folder that can be written to, got {}: "
                    "{}",
                    key, path.string(), error ? error.message() : std::strerror(errno)));
  return std::shared_ptr<const CacheDirectory>(new CacheDirectory(fs::absolute(path), false));
}

std::shared_ptr<const CacheDirectory> CacheDirectory::temporary() {
  std::error_code error;
  const fs::path base = fs::temp_directory_path(error);
  std::string path = (base / "anabatic-XXXXXX").string();
  if (error || ::mkdtemp(path.data()) == nullptr)
    throw ResourceError(fmt::format(
        "[cache] expected a temporary folder that can be written to (TMPDIR), got {}: {}", path,
        error ? error.message() : std::strerror(errno)));
  return std::shared_ptr<const CacheDirectory>(new CacheDirectory(path, true));
}

CacheDirectory::~CacheDirectory() {
  std::error_code ignored;
  if (is_temporary_) fs::remove_all(path_, ignored);
}

}  // namespace anabatic::io
