// SPDX-License-Identifier: Apache-2.0
#include "plugin/check/guarded_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/rounding.h"

namespace anabatic::plugin::check {
namespace {

// Wider than a row of a large case, so that one row too many is found too. It takes no memory.
constexpr std::int64_t kGuardBytes = std::int64_t{1} << 20;

void protect(std::byte* begin, std::int64_t bytes, int protection) {
  if (bytes > 0 && ::mprotect(begin, static_cast<std::size_t>(bytes), protection) != 0)
    throw ResourceError(
        fmt::format("[check-op] cannot protect {} bytes: {}", bytes, std::strerror(errno)));
}

}  // namespace

GuardedMemory::GuardedMemory(std::int64_t bytes, Side side, std::byte fill, std::int64_t alignment)
    : bytes_(bytes),
      page_bytes_(round_up(bytes, std::int64_t{::sysconf(_SC_PAGESIZE)})),
      map_bytes_(page_bytes_ + 2 * kGuardBytes),
      fill_(fill) {
  void* map = ::mmap(nullptr, static_cast<std::size_t>(map_bytes_), PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED)
    throw ResourceError(
        fmt::format("[check-op] cannot map {} bytes: {}", map_bytes_, std::strerror(errno)));
  map_ = static_cast<std::byte*>(map);
  pages_ = map_ + kGuardBytes;
  protect(pages_, page_bytes_, PROT_READ | PROT_WRITE);
  std::memset(pages_, std::to_integer<int>(fill), static_cast<std::size_t>(page_bytes_));
  data_ = pages_;
  if (side == Side::kEnd) data_ += (page_bytes_ - bytes) / alignment * alignment;
}

GuardedMemory::~GuardedMemory() { (void)::munmap(map_, static_cast<std::size_t>(map_bytes_)); }

void GuardedMemory::make_read_only() { protect(pages_, page_bytes_, PROT_READ); }

std::optional<std::int64_t> GuardedMemory::offset_of(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  if (byte < map_ || byte >= map_ + map_bytes_) return std::nullopt;
  return byte - data_;
}

std::optional<std::int64_t> GuardedMemory::changed_around() const {
  for (const std::byte* byte = pages_; byte < pages_ + page_bytes_; ++byte) {
    if (byte == data_) byte += bytes_;
    if (byte < pages_ + page_bytes_ && *byte != fill_) return byte - data_;
  }
  return std::nullopt;
}

}  // namespace anabatic::plugin::check
