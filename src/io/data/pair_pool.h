// SPDX-License-Identifier: Apache-2.0
// Descriptors of many .bin/.idx pairs: opened on demand, closed again where others need them.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <vector>

namespace anabatic::io {

// What tells a file that was changed or replaced from the one that was opened first.
struct FileStamp {
  std::uint64_t device = 0, inode = 0;
  std::int64_t bytes = 0, modified_ns = 0, changed_ns = 0;

  // Changes of the name, links or permissions do not count.
  bool has_same_content(const FileStamp& other) const {
    return device == other.device && inode == other.inode && bytes == other.bytes &&
           modified_ns == other.modified_ns;
  }
};
FileStamp stamp_of(const std::filesystem::path& path);  // ResourceError if there is none

// The two files of a pair. Not to be moved or destroyed while a Pin of it lives.
struct PooledPair {
  std::filesystem::path bin, idx;
  FileStamp bin_stamp, idx_stamp;  // as they were at first
  int slot = -1;                   // of the pool, which guards it
};

// One for the process, because descriptors are the process's. Thread-safe. A pair costs two
// descriptors while it is open; pinning one that is open costs a lock, and one that is not
// allocates nothing.
class PairPool {
 public:
  static PairPool& instance();

  // With room for this many open pairs. `instance()` has 32, or fewer where the limit of
  // descriptors (RLIMIT_NOFILE) leaves less.
  explicit PairPool(int capacity);
  ~PairPool();
  PairPool(const PairPool&) = delete;
  PairPool& operator=(const PairPool&) = delete;

  // Keeps a pair open while it lives.
  class Pin {
   public:
    Pin(PairPool& pool, PooledPair& pair);
    ~Pin();
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

    // Reads exactly bytes.size() bytes; ResourceError naming the file when it ends before.
    void read_bin(std::int64_t offset, std::span<std::byte> bytes) const;
    void read_idx(std::int64_t offset, std::span<std::byte> bytes) const;

   private:
    PairPool& pool_;
    const PooledPair& pair_;
    int slot_;
  };

  // Takes the stamps of a pair that is not in use yet.
  static void stamp(PooledPair& pair);
  // Closes the pair's files; nothing pins them.
  void forget(PooledPair& pair);
  int num_open() const;

 private:
  struct Slot {
    PooledPair* pair = nullptr;
    int bin = -1, idx = -1;
    int pins = 0;
    std::uint64_t last_use = 0;
  };

  int acquire(PooledPair& pair);
  void release(int slot);
  Slot* find_free();  // an empty one, or the least recently used that nothing pins; or null
  static void open(PooledPair& pair, Slot& slot);
  static void close(Slot& slot);

  mutable std::mutex mutex_;
  std::condition_variable unpinned_;
  std::vector<Slot> slots_;
  std::uint64_t clock_ = 0;
};

}  // namespace anabatic::io
