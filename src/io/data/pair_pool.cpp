// SPDX-License-Identifier: Apache-2.0
#include "io/data/pair_pool.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace anabatic::io {
namespace {

constexpr int kOpenPairs = 32;

FileStamp stamp_from(const struct stat& status) {
  const auto nanoseconds = [](const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .bytes = status.st_size,
          .modified_ns = nanoseconds(status.st_mtim),
          .changed_ns = nanoseconds(status.st_ctim)};
}

int capacity_of_process() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kOpenPairs;
  // A quarter of all descriptors, two a pair.
  return static_cast<int>(std::clamp<rlim_t>(limit.rlim_cur / 8, 2, kOpenPairs));
}

int open_same(const std::filesystem::path& path, const FileStamp& before) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    throw ResourceError(
        fmt::format("[data] cannot open {}, which was there when the run opened its data: {}",
                    path.string(), std::strerror(errno)));
  struct stat status {};
  if (::fstat(descriptor, &status) == 0 && before.has_same_content(stamp_from(status)))
    return descriptor;
  ::close(descriptor);
  throw ResourceError(
      fmt::format("[data] {}: expected the file as it was when the run opened its data ({} bytes), "
                  "got one that was changed since ({} bytes)",
                  path.string(), before.bytes, status.st_size));
}

void read_exactly(int descriptor, const std::filesystem::path& path, std::int64_t offset,
                  std::span<std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::pread(descriptor, bytes.data() + done, bytes.size() - done,
                                  offset + static_cast<std::int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      throw ResourceError(
          fmt::format("[data] cannot read {}: {}", path.string(), std::strerror(errno)));
    if (count == 0)
      throw ResourceError(fmt::format(
          "[data] {} ends early: expected {} bytes at {}, got {}; was it changed during the run?",
          path.string(), bytes.size(), offset, done));
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace

FileStamp stamp_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    throw ResourceError(
        fmt::format("[data] cannot open {}: {}", path.string(), std::strerror(errno)));
  return stamp_from(status);
}

PairPool& PairPool::instance() {
  static PairPool pool(capacity_of_process());
  return pool;
}

PairPool::PairPool(int capacity) : slots_(static_cast<std::size_t>(capacity)) {}

PairPool::~PairPool() {
  for (Slot& slot : slots_)
    if (slot.pair != nullptr) close(slot);
}

void PairPool::stamp(PooledPair& pair) {
  pair.bin_stamp = stamp_of(pair.bin);
  pair.idx_stamp = stamp_of(pair.idx);
}

void PairPool::open(PooledPair& pair, Slot& slot) {
  slot.bin = open_same(pair.bin, pair.bin_stamp);
  try {
    slot.idx = open_same(pair.idx, pair.idx_stamp);
  } catch (...) {
    ::close(std::exchange(slot.bin, -1));
    throw;
  }
  slot.pair = &pair;
}

void PairPool::close(Slot& slot) {
  ::close(std::exchange(slot.bin, -1));
  ::close(std::exchange(slot.idx, -1));
  std::exchange(slot.pair, nullptr)->slot = -1;
}

PairPool::Slot* PairPool::find_free() {
  Slot* oldest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.pair == nullptr) return &slot;
    if (slot.pins == 0 && (oldest == nullptr || slot.last_use < oldest->last_use)) oldest = &slot;
  }
  return oldest;
}

int PairPool::acquire(PooledPair& pair) {
  std::unique_lock lock(mutex_);
  while (pair.slot < 0) {
    Slot* free = find_free();
    if (free == nullptr) {
      unpinned_.wait(lock);
      continue;  // another thread may have opened this pair meanwhile
    }
    if (free->pair != nullptr) close(*free);
    open(pair, *free);
    pair.slot = static_cast<int>(free - slots_.data());
  }
  Slot& slot = slots_[static_cast<std::size_t>(pair.slot)];
  ++slot.pins;
  slot.last_use = ++clock_;
  return pair.slot;
}

void PairPool::release(int slot) {
  const std::lock_guard lock(mutex_);
  if (--slots_[static_cast<std::size_t>(slot)].pins == 0) unpinned_.notify_one();
}

void PairPool::forget(PooledPair& pair) {
  const std::lock_guard lock(mutex_);
  if (pair.slot >= 0) close(slots_[static_cast<std::size_t>(pair.slot)]);
}

int PairPool::num_open() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(
      std::ranges::count_if(slots_, [](const Slot& slot) { return slot.pair != nullptr; }));
}

PairPool::Pin::Pin(PairPool& pool, PooledPair& pair)
    : pool_(pool), pair_(pair), slot_(pool.acquire(pair)) {}

PairPool::Pin::~Pin() { pool_.release(slot_); }

// A pinned slot is read without the lock: no thread changes it.
void PairPool::Pin::read_bin(std::int64_t offset, std::span<std::byte> bytes) const {
  read_exactly(pool_.slots_[static_cast<std::size_t>(slot_)].bin, pair_.bin, offset, bytes);
}

void PairPool::Pin::read_idx(std::int64_t offset, std::span<std::byte> bytes) const {
  read_exactly(pool_.slots_[static_cast<std::size_t>(slot_)].idx, pair_.idx, offset, bytes);
}

}  // namespace anabatic::io
