// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/run_lock.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "run.lock";
constexpr std::size_t kMostLockBytes = 4096;
constexpr int kMostReplacements = 100;

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return "unknown";
  return name;
}

[[noreturn]] void fail(const fs::path& file, int error) {
  throw ResourceError(
      fmt::format("[train] train.output: cannot lock {}: {}", file.string(), std::strerror(error)));
}

// "process 12 on HOST since 2026-11-26 04:39:18 UTC"; empty for an empty file.
std::string read_owner(int descriptor) {
  std::string text(kMostLockBytes, '\0');
  const ssize_t count = ::pread(descriptor, text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  if (text.empty()) return "";
  const Json json = try_parse_json(text);
  const auto shown = [&](const char* key) -> std::string {
    if (!json.is_object() || !json.contains(key)) return "unknown";
    return json[key].is_string() ? json[key].get<std::string>() : show_json(json[key]);
  };
  return fmt::format("process {} on {} since {}", shown("pid"), shown("host"), shown("since"));
}

}  // namespace

std::string owner_of(const fs::path& output) {
  const int descriptor = ::open((output / kFile).c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return "";
  std::string owner = read_owner(descriptor);
  ::close(descriptor);
  return owner;
}

RunLock::RunLock(const fs::path& output) : file_(output / kFile) {
  std::error_code error;
  made_directory_ = fs::create_directories(output, error);
  if (error)
    throw ResourceError(fmt::format("[train] train.output: cannot make the directory {}: {}",
                                    output.string(), error.message()));
  for (int i = 0; i < kMostReplacements; ++i)
    if (open_and_lock()) return;
  fail(file_, EAGAIN);
}

bool RunLock::open_and_lock() {
  descriptor_ = ::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail(file_, errno);
  int result = 0;
  do result = ::flock(descriptor_, LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  const int error = result == 0 ? 0 : errno;
  const std::string owner = read_owner(descriptor_);
  const auto give_up = [&] { ::close(std::exchange(descriptor_, -1)); };
  if (error == EWOULDBLOCK) {
    give_up();
    throw ResourceError(fmt::format(
        "[train] train.output: expected a directory that no other run works in, got {}, which is "
        "in use by {}; wait for that run, stop it, or choose another train.output",
        file_.parent_path().string(), owner.empty() ? "a run that has just started" : owner));
  }
  const bool has_no_locks = error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS;
  if (error != 0 && !has_no_locks) {
    give_up();
    fail(file_, error);
  }
  if (has_no_locks)
    log_warning(
        "[train] train.output: {}: this file system has no locks ({}); two runs there cannot "
        "detect each other",
        file_.parent_path().string(), std::strerror(error));
  // Its owner may have removed the file between the two calls above.
  struct stat opened {
  }, named{};
  if (::fstat(descriptor_, &opened) != 0 || ::stat(file_.c_str(), &named) != 0 ||
      opened.st_ino != named.st_ino || opened.st_dev != named.st_dev) {
    give_up();
    return false;
  }
  former_owner_ = owner;
  return true;
}

void RunLock::sign() const {
  const OrderedJson json{
      {"pid", ::getpid()},
      {"host", host_name()},
      {"since", fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr)))}};
  const std::string text = show_json(json) + "\n";
  if (::ftruncate(descriptor_, 0) != 0 ||
      ::pwrite(descriptor_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    throw ResourceError(fmt::format("[train] train.output: cannot write {}: {}", file_.string(),
                                    std::strerror(errno)));
}

RunLock::~RunLock() {
  if (descriptor_ < 0) return;
  ::unlink(file_.c_str());
  if (made_directory_) ::rmdir(file_.parent_path().c_str());  // fails where it holds anything
  ::close(descriptor_);
}

}  // namespace anabatic::train
