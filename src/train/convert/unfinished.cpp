// SPDX-License-Identifier: Apache-2.0
#include "train/convert/unfinished.h"

#include "base/error.h"
#include "io/file.h"

namespace anabatic::train {

namespace fs = std::filesystem;

Unfinished::Unfinished(const fs::path& final_path, bool may_replace)
    : final_(final_path), path_(final_path.string() + ".partial") {
  std::error_code absent;
  ANABATIC_REQUIRE(!fs::exists(final_, absent) ||
                       (may_replace && fs::is_regular_file(final_, absent)) ||
                       (fs::is_directory(final_, absent) && fs::is_empty(final_, absent)),
                   "[convert] {}: expected a name that is free, found files", final_.string());
  fs::remove_all(path_);
  if (path_.has_parent_path()) fs::create_directories(path_.parent_path());
}

Unfinished::~Unfinished() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void Unfinished::finish() {
  if (fs::is_directory(path_)) io::sync_directory(path_);
  std::error_code ignored;
  fs::remove(final_, ignored);  // an empty directory of that name, or the file that goes
  io::rename_file(path_, final_);
  path_.clear();
  io::sync_directory(fs::absolute(final_).parent_path());
}

}  // namespace anabatic::train
