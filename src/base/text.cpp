// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
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

std::filesystem::path beside(const std::filesystem::path& path) { return path.string() + ".tmp"; }

int create(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) throw_errno("create", path);
  return file;
}

}  // namespace

void require_writable(const std::filesystem::path& path) {
  { const FileDescriptor file(create(beside(path))); }
  ::unlink(beside(path).c_str());
  if (std::filesystem::is_directory(path))
    throw ResourceError(
        fmt::format("[file] expected a file to write, got the folder {}", path.string()));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path temporary = beside(path);
  {
    const FileDescriptor file(create(temporary));
    std::size_t done = 0;
    while (done < content.size()) {
      const ssize_t wrote = ::write(file.get(), content.data() + done, content.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) throw_errno("write", temporary);
      done += static_cast<std::size_t>(wrote);
    }
    if (::fsync(file.get()) != 0) throw_errno("fsync", temporary);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) throw_errno("rename onto", path);
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const FileDescriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0 || ::fsync(directory.get()) != 0) throw_errno("fsync", folder);
}

}  // namespace anabatic
