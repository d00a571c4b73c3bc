// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace anabatic {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

[[noreturn]] void throw_errno(std::string_view doing, const std::filesystem::path& path) {
  throw ResourceError(
      fmt::format("[file] cannot {} {}: {}", doing, path.string(), std::strerror(errno)));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  ~FileDescriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

std::optional<std::string> nearest_word(std::string_view word,
                                        std::span<const std::string> candidates) {
  std::optional<std::string> best;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (3 * distance > std::max(word.size(), candidate.size()) + 2) continue;
    if (!best || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string format_bytes(std::int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < std::size(kUnits)) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  std::string unit;
  for (const char c : std::string_view(stop, text.data() + text.size()))
    if (c != ' ' || !unit.empty()) unit += static_cast<char>(std::tolower(c));
  static constexpr std::pair<std::string_view, double> kFactors[] = {
      {"", 1},      {"b", 1},        {"kib", 1024.0}, {"mib", 1048576.0}, {"gib", 1073741824.0},
      {"kb", 1000}, {"mb", 1000000}, {"gb", 1e9},     {"tb", 1e12},       {"tib", 1099511627776.0}};
  for (const auto& [name, factor] : kFactors)
    if (unit == name && value >= 0 && value * factor <= 0x1p62)
      return static_cast<std::int64_t>(value * factor);
  return std::nullopt;
}

std::string_view unit_of_bytes(std::string_view text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} ? text.substr(static_cast<std::size_t>(stop - text.data())) : "";
}

std::string format_bytes_up(std::int64_t bytes, std::string_view unit) {
  const std::int64_t factor = parse_bytes("1" + std::string(unit)).value_or(1);
  if (factor == 1) return fmt::format("{}{}", bytes, unit);
  const double value =
      static_cast<double>(std::max<std::int64_t>(bytes, 0)) / static_cast<double>(factor);
  int decimals = 0;
  double scale = 1;
  for (; value * scale < 100 && decimals < 6; ++decimals) scale *= 10;
  const double whole = std::floor(value * scale);
  const bool is_exact = whole == value * scale;
  std::string number = fmt::format("{:.{}f}", (is_exact ? whole : whole + 1) / scale, decimals);
  if (decimals > 0) {
    number.erase(number.find_last_not_of('0') + 1);
    if (number.back() == '.') number.pop_back();
  }
  return number + std::string(unit);
}

std::string read_file(const std::filesystem::path& path, std::int64_t limit_bytes) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) throw_errno("open", path);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_errno("stat", path);
  if (S_ISDIR(status.st_mode))
    throw ResourceError(fmt::format("[file] cannot read {}: is a directory", path.string()));
  if (status.st_size > limit_bytes) {
    throw ResourceError(fmt::format("[file] {} holds {} bytes, more than the limit of {}",
                                    path.string(), static_cast<std::int64_t>(status.st_size),
                                    limit_bytes));
  }
  std::string content(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = ::read(file.get(), content.data() + done, content.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("read", path);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  content.resize(done);
  return content;
}

namespace {

// Pipes, devices and open descriptors: bytes go there, a rename would take their place.
bool is_stream(const std::filesystem::path& path) {
  const std::string name = path.lexically_normal().string();
  for (const char* prefix : {"/dev/fd/", "/dev/std", "/proc/"})
    if (name.starts_with(prefix)) return true;
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

int open_stream(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) throw_errno("open", path);
  return file;
}

void write_all(int file, std::string_view content, const std::filesystem::path& path) {
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t wrote = ::write(file, content.data() + done, content.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) throw_errno("write", path);
    done += static_cast<std::size_t>(wrote);
  }
}

// A file in the folder of another, under a name that no other writer has; removed unless renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& target) : target_(target) {
    static std::atomic<int> count = 0;
    path_ = fmt::format("{}.{}-{}.tmp", target.string(), ::getpid(), count++);
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor_ < 0) throw_errno("create", target_);
  }
  ~TemporaryFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::string_view content) { write_all(descriptor_, content, target_); }
  // Becomes the target.
  void finish() {
    if (::fsync(descriptor_) != 0) throw_errno("fsync", target_);
    if (::close(std::exchange(descriptor_, -1)) != 0) throw_errno("close", target_);
    if (::rename(path_.c_str(), target_.c_str()) != 0) throw_errno("rename onto", target_);
    path_.clear();
  }

 private:
  std::filesystem::path target_, path_;
  int descriptor_ = -1;
};

}  // namespace

std::filesystem::path replaceable_file(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    throw ResourceError(
        fmt::format("[file] expected a file to write, got the folder {}", path.string()));
  if (is_stream(path))
    throw ResourceError(
        fmt::format("[file] expected a file to write, got a pipe or device: {}", path.string()));
  std::filesystem::path target = path;
  for (int links = 0; links < 40 && std::filesystem::is_symlink(target, error); ++links) {
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    if (error) break;
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  return target;
}

void require_writable(const std::filesystem::path& path) {
  if (is_stream(path)) {
    const FileDescriptor file(open_stream(path));
    return;
  }
  const TemporaryFile file(replaceable_file(path));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  if (is_stream(path)) {
    FileDescriptor file(open_stream(path));
    write_all(file.get(), content, path);
    return;
  }
  const std::filesystem::path target = replaceable_file(path);
  {
    TemporaryFile file(target);
    file.write(content);
    file.finish();
  }
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
  const FileDescriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0 || ::fsync(directory.get()) != 0) throw_errno("fsync", folder);
}

}  // namespace anabatic
