// SPDX-License-Identifier: Apache-2.0
// Appending JSON objects to a file, one a line: metrics.jsonl.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "io/file.h"

namespace anabatic::io {

class JsonLinesWriter {
 public:
  // Appends to the file, made if it is not there. A last line without "\n", as a killed run leaves
  // it, is dropped first.
  explicit JsonLinesWriter(const std::filesystem::path& path);

  // Writes the object and "\n" in one system call. Numbers that are not finite become null.
  void write(const nlohmann::ordered_json& object);
  void sync() const { file_.sync(); }

 private:
  File file_;
};

// Keeps only the lines whose "step" is at most last_step, atomically: what a resumed run has not
// yet done leaves the file. Lines that are no objects with a step are dropped. No file: nothing
// happens.
void keep_steps(const std::filesystem::path& path, std::int64_t last_step);

// Hands over every line that is an object with a step, in their order and one at a time: a file of
// any size takes the memory of one line. A last line without "\n" belongs to a run that is at work
// or was killed; it is left out. Returns how many other lines were no such objects. No file: 0.
std::int64_t visit_steps(
    const std::filesystem::path& path,
    const std::function<void(std::int64_t step, const nlohmann::json&)>& visit);

}  // namespace anabatic::io
