// SPDX-License-Identifier: Apache-2.0
// Small text helpers: nearest word for error hints, human-readable byte counts, whole files.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic {

// The candidate with the smallest edit distance, if that is at most a third of the longer word's
// length.
std::optional<std::string> nearest_word(std::string_view word,
                                        std::span<const std::string> candidates);

// "1.5 GiB"; exact below 1 KiB.
std::string format_bytes(std::int64_t bytes);

// "6GiB", "1.5 MB", "4096": bytes, with KiB, MiB, GiB, TiB of 1024 and KB, MB, GB, TB of 1000 in
// any case. Nothing for another text, or beyond 2^62.
std::optional<std::int64_t> parse_bytes(std::string_view text);

// The unit in such a text as it is written, " MB" or "GiB"; "" for a plain number.
std::string_view unit_of_bytes(std::string_view text);

// Bytes in a unit from unit_of_bytes, with at least three digits and rounded up, so that a budget
// of this text is no smaller. Whole bytes if the unit is "".
std::string format_bytes_up(std::int64_t bytes, std::string_view unit);

// The whole file; ResourceError naming the path if it cannot be read or exceeds limit_bytes.
std::string read_file(const std::filesystem::path& path,
                      std::int64_t limit_bytes = std::int64_t{1} << 30);

// Writes a file in the target's folder, fsyncs it, renames it over the target and fsyncs the
// folder.
// After a crash or an error the old or the new file is there, complete. Follows symbolic links; a
// pipe or a device is written directly.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// ResourceError if write_file_atomically could not begin; an existing file is not changed.
void require_writable(const std::filesystem::path& path);

// The file that a writer of `path` replaces: the target of symbolic links. ResourceError for a
// folder, a pipe or a device, which cannot be replaced.
std::filesystem::path replaceable_file(const std::filesystem::path& path);

}  // namespace anabatic
