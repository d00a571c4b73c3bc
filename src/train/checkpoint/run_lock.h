// SPDX-License-Identifier: Apache-2.0
// One run at a time in a directory: OUTPUT/run.lock, held for the life of a run, names its owner.
#pragma once
#include <filesystem>
#include <string>

namespace anabatic::train {

class RunLock {
 public:
  // Makes the directory if need be. ResourceError naming the owner when another run is at work
  // there, of this process or another. The system lets go of the lock when a process ends, however
  // it does.
  explicit RunLock(const std::filesystem::path& output);
  ~RunLock();  // removes the file
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Writes pid, host and time into the file: apart, for a full disk may first have to be cleared.
  void sign() const;
  // Who held the lock and ended without giving it back; empty: nobody.
  const std::string& former_owner() const { return former_owner_; }

 private:
  bool open_and_lock();  // false: the file was replaced meanwhile

  std::filesystem::path file_;
  int descriptor_ = -1;
  std::string former_owner_;
};

}  // namespace anabatic::train
