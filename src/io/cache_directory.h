// SPDX-License-Identifier: Apache-2.0
// Directories for files that can be rebuilt. In a folder that others share no name can be guessed,
// and others cannot put files there.
#pragma once
#include <filesystem>
#include <memory>
#include <string>

namespace anabatic::io {

class CacheDirectory {
 public:
  // NAME in the user's cache, $XDG_CACHE_HOME/anabatic or ~/.cache/anabatic, readable and writable
  // by the user alone. If there is none that only the user may write to: a temporary one, and a
  // warning with the reason.
  static std::shared_ptr<const CacheDirectory> of_user(const std::string& name);
  // `path`, created if needed. ResourceError naming `key` of the run config if it cannot be created
  // or written to.
  static std::shared_ptr<const CacheDirectory> at(const std::filesystem::path& path,
                                                  const std::string& key);
  // One in the system's temporary folder; it is deleted with its last owner.
  static std::shared_ptr<const CacheDirectory> temporary();

  ~CacheDirectory();
  CacheDirectory(const CacheDirectory&) = delete;
  CacheDirectory& operator=(const CacheDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  bool is_temporary() const { return is_temporary_; }

 private:
  CacheDirectory(std::filesystem::path path, bool is_temporary)
      : path_(std::move(path)), is_temporary_(is_temporary) {}

  std::filesystem::path path_;
  bool is_temporary_;
};

}  // namespace anabatic::io
