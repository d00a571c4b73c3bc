// SPDX-License-Identifier: Apache-2.0
// A file or directory under a temporary name, which is removed unless it gets its own.
#pragma once
#include <filesystem>

namespace anabatic::train {

class Unfinished {
 public:
  // The temporary name is `final_path` + ".partial"; what an earlier run left there is removed.
  // InvalidArgument where the final name holds files already, unless it `may_replace` a file.
  explicit Unfinished(const std::filesystem::path& final_path, bool may_replace = false);
  ~Unfinished();
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Gives it its name, durably.
  void finish();

 private:
  std::filesystem::path final_, path_;
};

}  // namespace anabatic::train
