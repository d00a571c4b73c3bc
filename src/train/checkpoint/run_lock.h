// SPDX-License-Identifier: Apache-2.0
// Allows one run at a time in a directory: OUTPUT/run.lock is held during a run and names its
// owner.
#pragma once
#include <filesystem>
#include <string>

namespace anabatic::train {

// "process 12 on HOST since 2026-11-26 04:39:18 UTC": who runs in OUTPUT, as this process sees it.
// Empty where nobody does.
std::string owner_of(const std::filesystem::path& output);

class RunLock {
 public:
  // Creates the directory if needed. ResourceError naming the owner if another run of any process
  // holds the lock. The system releases the lock when a process ends, in whatever way.
  explicit RunLock(const std::filesystem::path& output);
  // Removes the file, and a directory that it made and nobody wrote into.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Writes pid, host and time into the file. Separate, because a full disk may first need cleaning.
  void sign() const;
  // Who held the lock and ended without releasing it; empty: nobody.
  const std::string& former_owner() const { return former_owner_; }

 private:
  bool open_and_lock();  // false: the file was replaced meanwhile

  std::filesystem::path file_;
  bool made_directory_ = false;
  int descriptor_ = -1;
  std::string former_owner_;
};

}  // namespace anabatic::train
