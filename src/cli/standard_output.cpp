// SPDX-License-Identifier: Apache-2.0
#include "cli/standard_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>

#include "base/error.h"

namespace anabatic::cli {
namespace {

int first_error = 0;  // of standard output

[[noreturn]] void fail() {
  throw ResourceError(
      fmt::format("[output] standard output cannot be written: {}", std::strerror(first_error)));
}

// Whether all went through; keeps the first error of standard output.
bool write_all(std::FILE* out, std::string_view text, bool flushes) noexcept {
  errno = 0;
  const bool is_whole = std::fwrite(text.data(), 1, text.size(), out) == text.size() &&
                        (!flushes || std::fflush(out) == 0);
  if (!is_whole && out == stdout && first_error == 0) first_error = errno != 0 ? errno : EIO;
  return is_whole;
}

}  // namespace

void prepare_standard_streams() {
  std::signal(SIGPIPE, SIG_IGN);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) != -1) continue;
    // Opened the wrong way round, so that reads and writes fail as they would have.
    const int opened = ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (opened >= 0 && opened != stream) ::close(opened);
  }
}

void write_output(std::string_view text) {
  if (!write_all(stdout, text, false)) fail();
}

void flush_output() {
  if (!write_all(stdout, "", true)) fail();
}

void write_progress(std::FILE* out, std::string_view text) noexcept { write_all(out, text, true); }

void finish_output() {
  write_all(stdout, "", true);  // before the stream that shares its buffer: it knows the reason
  std::cout.flush();
  if (first_error == 0 && std::ferror(stdout) != 0) first_error = EIO;
  errno = 0;
  if (std::fclose(stdout) != 0 && first_error == 0) first_error = errno;
  if (first_error != 0) fail();
}

}  // namespace anabatic::cli
