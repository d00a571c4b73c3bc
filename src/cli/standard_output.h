// SPDX-License-Identifier: Apache-2.0
// Standard output of the command line. Output that cannot be written is an error, at the latest
// when the process ends.
#pragma once
#include <fmt/core.h>

#include <cstdio>
#include <string_view>

namespace anabatic::cli {

// To be called before any file is opened: a file could get the number of a closed standard stream.
// Writes to a closed pipe become errors instead of ending the process.
void prepare_standard_streams();

// Write a part of the result, and flush what was written. ResourceError if that fails.
void write_output(std::string_view text);
void flush_output();

template <class... Args>
void print_output(fmt::format_string<Args...> format, Args&&... args) {
  write_output(fmt::format(format, std::forward<Args>(args)...));
}

// For output in addition to a result, such as the progress of a run. The run is worth more than its
// lines, so an error is reported only by finish_output.
void write_progress(std::FILE* out, std::string_view text) noexcept;

// Flushes and closes standard output. ResourceError if any of it could not be written.
void finish_output();

}  // namespace anabatic::cli
