// SPDX-License-Identifier: Apache-2.0
// Standard output of the command line: what cannot be written is an error, at the latest when the
// process ends.
#pragma once
#include <fmt/core.h>

#include <cstdio>
#include <string_view>

namespace anabatic::cli {

// Before anything is opened: a closed standard stream would give its number to a file of ours.
// Writes to a closed pipe become errors instead of ending the process.
void prepare_standard_streams();

// Writes a part of the result; flushes what was written. ResourceError when that cannot be.
void write_output(std::string_view text);
void flush_output();

template <class... Args>
void print_output(fmt::format_string<Args...> format, Args&&... args) {
  write_output(fmt::format(format, std::forward<Args>(args)...));
}

// For what goes beside a result, such as the progress of a run that is worth more than its lines:
// an error is kept for finish_output.
void write_progress(std::FILE* out, std::string_view text) noexcept;

// Flushes and closes standard output. ResourceError when any of it could not be written.
void finish_output();

}  // namespace anabatic::cli
