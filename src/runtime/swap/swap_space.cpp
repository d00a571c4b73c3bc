// SPDX-License-Identifier: Apache-2.0
#include "runtime/swap/swap_space.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "device/clock.h"
#include "device/helper_cores.h"
#include "device/memory.h"

namespace anabatic::runtime::swap {
namespace {

constexpr std::size_t kQueueLength = 4096;
constexpr std::int64_t kStagingBlocks = kStagingBytes / kBlockBytes;

struct Request {
  bool is_write = false;
  std::size_t region = 0;
  std::int64_t first = 0, num_blocks = 0;
  std::byte* data = nullptr;
  bool sums = true;  // checks, or notes, checksums
};

}  // namespace

struct SwapSpace::Impl {
  SwapFile file;
  device::Memory staging{kStagingBytes};
  std::vector<Request> queue{kQueueLength};  // a ring
  std::mutex mutex;
  std::condition_variable has_work, has_ended;
  Ticket queued = 0;
  std::atomic<Ticket> ended{0};
  std::exception_ptr error;  // under the mutex
  Request staged;            // what the staging buffer holds, when nothing was queued since
  Ticket staged_at = 0;
  bool stops = false;
  SwapStats stats;
  std::vector<std::span<std::byte>> pinned;
  std::string remark;  // on what was pinned
  std::chrono::duration<double> patience;
  std::jthread thread;  // last: starts when all else is constructed

  explicit Impl(const SwapOptions& options)
      : file(options),
        patience(options.patience_seconds),
        thread([this, cores = options.num_compute_threads] {
          device::keep_off_compute_cores(cores);
          work();
        }) {}

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stops = true;
    }
    has_work.notify_one();
  }

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      has_work.wait(lock, [&] { return stops || ended.load() < queued; });
      if (stops) return;
      if (!error) {
        const Request request = queue[static_cast<std::size_t>(ended.load() % kQueueLength)];
        lock.unlock();
        const std::int64_t begin = device::wall_nanoseconds();
        std::exception_ptr failure;
        try {
          file.transfer(request.is_write, request.region, request.first, request.num_blocks,
                        request.data, request.sums);
        } catch (...) {
          failure = std::current_exception();
        }
        const std::int64_t time = device::wall_nanoseconds() - begin;
        lock.lock();
        stats.busy_nanoseconds += time;
        (request.is_write ? stats.written_bytes : stats.read_bytes) += bytes_of(request);
        if (!error) error = failure;
      }
      ended.store(error ? queued : ended.load() + 1);
      has_ended.notify_all();
    }
  }

  std::int64_t bytes_of(const Request& request) const {
    const std::int64_t bytes = file.region(request.region).bytes;
    return std::min(bytes, (request.first + request.num_blocks) * kBlockBytes) -
           request.first * kBlockBytes;
  }

  ResourceError too_slow(Ticket before) const {
    const Request& request = queue[static_cast<std::size_t>(before % kQueueLength)];
    return ResourceError(fmt::format(
        "[swap] file in {}: {}: expected to {} {} within {:.0f} s, found the transfer still in "
        "progress",
        file.directory().string(), file.region(request.region).name,
        request.is_write ? "write" : "read", format_bytes(bytes_of(request)), patience.count()));
  }

  Ticket push(const Request& request) {
    std::unique_lock lock(mutex);
    has_ended.wait(lock, [&] { return queued - ended.load() < kQueueLength; });
    queue[static_cast<std::size_t>(queued % kQueueLength)] = request;
    const Ticket ticket = ++queued;
    lock.unlock();
    has_work.notify_one();
    return ticket;
  }

  Ticket push_region(bool is_write, std::size_t region, std::byte* data, bool sums) {
    ANABATIC_CHECK(reinterpret_cast<std::uintptr_t>(data) % kSectorBytes == 0,
                   "[swap] a buffer that is not aligned to {} bytes", kSectorBytes);
    return push({is_write, region, 0, file.region(region).num_blocks, data, sums});
  }

  void wait(Ticket ticket) {
    std::unique_lock lock(mutex);
    if (ended.load() < ticket) {
      const std::int64_t begin = device::wall_nanoseconds();
      for (Ticket seen = ended.load(); !error && ended.load() < ticket; seen = ended.load()) {
        has_ended.wait_for(lock, patience, [&] { return error || ended.load() != seen; });
        if (!error && ended.load() == seen) {
          const ResourceError slow = too_slow(seen);
          // What is under way keeps its memory: who ends now waits for the disk once more.
          log_line(Severity::kError,
                   fmt::format("{}; the run ends when the disk answers", slow.what()));
          error = std::make_exception_ptr(slow);
        }
      }
      stats.waited_nanoseconds += device::wall_nanoseconds() - begin;
    }
    if (error) std::rethrow_exception(error);
  }

  // Calls body(place in staging, bytes) for the parts of [first, first + count) of a region, with
  // the blocks around each in the staging buffer. Reads take whole buffers, so that those that
  // follow one another find their blocks there.
  template <class Body>
  void for_parts(std::size_t region, std::int64_t first, std::int64_t count, bool is_write,
                 Body&& body) {
    const Region& of = file.region(region);
    ANABATIC_CHECK(first >= 0 && count >= 0 && first + count <= of.bytes,
                   "[swap] bytes [{}, +{}) of {}, which has {}", first, count, of.name, of.bytes);
    for (std::int64_t at = first, end = first + count; at < end;) {
      const std::int64_t block = at / kBlockBytes;
      if (is_write || !is_staged(region, block)) {
        const std::int64_t num_blocks = std::min(kStagingBlocks, of.num_blocks - block);
        staged = {false, region, block, num_blocks, staging.data()};
        const std::int64_t last = (end - 1) / kBlockBytes;
        if (is_write) staged.num_blocks = std::min(num_blocks, last - block + 1);
        if (!is_write || !covers(staged, at, end)) wait(push(staged));
        staged_at = queued;
      }
      const std::int64_t begin = staged.first * kBlockBytes;
      const std::int64_t bytes =
          std::min({begin + staged.num_blocks * kBlockBytes, of.bytes, end}) - at;
      body(staging.data() + (at - begin), bytes);
      Request back = staged;
      back.is_write = true;
      if (is_write) wait(push(back));
      at += bytes;
    }
  }

  // Whether the staging buffer still holds what is on disk there.
  bool is_staged(std::size_t region, std::int64_t block) const {
    return staged_at == queued && queued > 0 && staged.region == region && staged.first <= block &&
           block < staged.first + staged.num_blocks;
  }

  // Whether [begin, end) holds all bytes of a request.
  bool covers(const Request& request, std::int64_t begin, std::int64_t end) const {
    const std::int64_t first = request.first * kBlockBytes;
    return begin == first && end >= first + bytes_of(request);
  }
};

SwapSpace::SwapSpace(const SwapOptions& options) : impl_(std::make_unique<Impl>(options)) {}
SwapSpace::~SwapSpace() = default;

std::size_t SwapSpace::add(std::string_view name, std::int64_t bytes) {
  wait_all();  // the thread looks at the file's tables while it moves something
  return impl_->file.add(name, bytes);
}

Ticket SwapSpace::read(std::size_t region, std::byte* data) {
  return impl_->push_region(false, region, data, true);
}

Ticket SwapSpace::write(std::size_t region, const std::byte* data) {
  return impl_->push_region(true, region, const_cast<std::byte*>(data), true);
}

Ticket SwapSpace::read_unchecked(std::size_t region, std::byte* data) {
  return impl_->push_region(false, region, data, false);
}

void SwapSpace::check(std::size_t region, std::span<const std::uint64_t> checksums) {
  try {
    impl_->file.compare_checksums(region, checksums);
  } catch (const ResourceError&) {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->error) impl_->error = std::current_exception();
    throw;
  }
}

Ticket SwapSpace::write_summed(std::size_t region, const std::byte* data,
                               std::span<const std::uint64_t> checksums) {
  impl_->file.set_checksums(region, checksums);
  return impl_->push_region(true, region, const_cast<std::byte*>(data), false);
}

void SwapSpace::wait(Ticket ticket) { impl_->wait(ticket); }

void SwapSpace::wait_all() { impl_->wait(impl_->queued); }

void SwapSpace::finish() noexcept {
  std::unique_lock lock(impl_->mutex);
  impl_->has_ended.wait(lock, [&] { return impl_->ended.load() >= impl_->queued; });
}

void SwapSpace::read_bytes(std::size_t region, std::int64_t first, std::span<std::byte> bytes) {
  std::byte* to = bytes.data();
  impl_->for_parts(region, first, static_cast<std::int64_t>(bytes.size()), false,
                   [&](const std::byte* from, std::int64_t count) {
                     std::memcpy(to, from, static_cast<std::size_t>(count));
                     to += count;
                   });
}

void SwapSpace::write_bytes(std::size_t region, std::int64_t first,
                            std::span<const std::byte> bytes) {
  const std::byte* from = bytes.data();
  impl_->for_parts(region, first, static_cast<std::int64_t>(bytes.size()), true,
                   [&](std::byte* to, std::int64_t count) {
                     std::memcpy(to, from, static_cast<std::size_t>(count));
                     from += count;
                   });
}

void SwapSpace::pin(std::span<std::byte> bytes) {
  wait_all();  // the thread uses what the device knows
  const bool is_locked = bytes.empty() || ::mlock(bytes.data(), bytes.size()) == 0;
  impl_->remark = is_locked ? "; windows locked in memory"
                            : "; windows touched, not locked (beyond the limit of locked memory)";
  impl_->pinned.push_back(bytes);
  impl_->file.use_memory(impl_->pinned);
}

void SwapSpace::unpin(std::span<std::byte> bytes) noexcept {
  finish();
  std::erase_if(impl_->pinned, [&](const auto& range) { return range.data() == bytes.data(); });
  impl_->file.use_memory(impl_->pinned);
  if (!bytes.empty()) ::munlock(bytes.data(), bytes.size());
}

std::int64_t SwapSpace::region_bytes(std::size_t region) const {
  return impl_->file.region(region).bytes;
}

std::int64_t SwapSpace::file_bytes() const { return impl_->file.bytes(); }

SwapStats SwapSpace::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

std::string SwapSpace::describe() const { return impl_->file.describe() + impl_->remark; }

}  // namespace anabatic::runtime::swap
