// SPDX-License-Identifier: Apache-2.0
#include "device/memory.h"

#include <sys/mman.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#if defined(__linux__)
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/rounding.h"
#include "base/text.h"

namespace anabatic::device {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::size_t kPageBytes = 4096;

// Spreads pages that are not touched yet over the memory nodes that the process may use: threads
// take tasks as they come, so none owns a range that its node could hold. A wish: may fail.
void spread_over_nodes(void* data, std::size_t bytes) {
#if defined(__linux__)
  constexpr unsigned long kMaxNodes = 1024;
  constexpr std::size_t kWordBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kMaxNodes / kWordBits> nodes{};
  if (syscall(SYS_get_mempolicy, nullptr, nodes.data(), kMaxNodes, nullptr,
              static_cast<unsigned long>(MPOL_F_MEMS_ALLOWED)) != 0)
    return;
  int count = 0;
  for (const unsigned long word : nodes) count += std::popcount(word);
  if (count > 1)
    (void)syscall(SYS_mbind, data, bytes, MPOL_INTERLEAVE, nodes.data(), kMaxNodes, 0UL);
#else
  (void)data;
  (void)bytes;
#endif
}

// The number after "KEY: " in a file of /proc, which counts in KiB; -1 when absent.
std::int64_t proc_bytes(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return std::stoll(line.substr(key.size())) * 1024;
  return -1;
}

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

// The number that a file begins with; kNoLimit when the file is absent or says "max". Version 1
// writes a number near 2^63 for no limit.
std::int64_t file_number(const std::filesystem::path& path) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value && value < kMostBytes ? value : kNoLimit;
}

// The value of a line "KEY VALUE"; 0 when absent.
std::int64_t stat_number(const std::filesystem::path& path, std::string_view key) {
  std::ifstream file(path);
  std::string name;
  std::int64_t value = 0;
  while (file >> name >> value)
    if (name == key) return value;
  return 0;
}

struct CgroupFiles {
  const char *limit, *used, *reclaimable;  // the last is a key of memory.stat
};
constexpr CgroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};
constexpr CgroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                                "total_inactive_file"};

// The bytes that the limit of a group leaves.
std::int64_t bytes_left(const std::filesystem::path& group, const CgroupFiles& files) {
  const std::int64_t limit = file_number(group / files.limit);
  if (limit == kNoLimit) return kNoLimit;
  std::int64_t used = file_number(group / files.used);
  if (used == kNoLimit) used = 0;
  const std::int64_t held =
      std::max<std::int64_t>(0, used - stat_number(group / "memory.stat", files.reclaimable));
  return std::max<std::int64_t>(0, limit - held);
}

}  // namespace

Memory::Memory(std::int64_t bytes) : bytes_(bytes) {
  ANABATIC_CHECK(bytes >= 0, "[memory] {} bytes", bytes);
  if (bytes == 0) return;
  const auto size = static_cast<std::size_t>(bytes);
  // Small blocks stay on small pages: a huge page would be mostly waste.
  const std::size_t alignment = size >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  mapping_bytes_ = round_up(size, kPageBytes) + alignment;
  mapping_ =
      mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw ResourceError(fmt::format("[memory] expected {} more from the system, got: {}",
                                    format_bytes(bytes), std::strerror(errno)));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
  data_ = reinterpret_cast<std::byte*>(round_up(address, alignment));
#ifdef MADV_HUGEPAGE
  if (alignment == kHugePageBytes) madvise(data_, size, MADV_HUGEPAGE);  // a wish: may fail
#endif
  spread_over_nodes(data_, round_up(size, kPageBytes));
  for (std::size_t i = 0; i < size; i += kPageBytes)
    *reinterpret_cast<volatile std::byte*>(data_ + i) = std::byte{0};
}

Memory::~Memory() {
  if (mapping_) munmap(mapping_, mapping_bytes_);
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_bytes_(std::exchange(other.mapping_bytes_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  return *this;
}

std::int64_t current_resident_bytes() {
  return std::max<std::int64_t>(0, proc_bytes("/proc/self/status", "VmRSS:"));
}

std::int64_t peak_resident_bytes() {
  return std::max<std::int64_t>(0, proc_bytes("/proc/self/status", "VmHWM:"));
}

bool reset_peak_resident() {
  std::ofstream file("/proc/self/clear_refs");
  return static_cast<bool>(file << "5" << std::flush);
}

std::int64_t available_bytes(const SystemRoots& roots) {
  std::int64_t available = proc_bytes((roots.proc / "meminfo").c_str(), "MemAvailable:");
  if (available < 0) available = kNoLimit;
  visit_cgroups(roots, "memory", [&](const std::filesystem::path& group, CgroupVersion version) {
    available = std::min(available,
                         bytes_left(group, version == CgroupVersion::kTwo ? kVersion2 : kVersion1));
  });
  return available;
}

void return_freed_memory() {
#if defined(__GLIBC__)
  // Fixed: by default both grow with the largest block that was ever freed.
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  mallopt(M_TRIM_THRESHOLD, 256 << 10);
  // A pool of freed blocks for a few threads, not eight for every core.
  mallopt(M_ARENA_MAX, 2);
#endif
}

void trim_heap() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace anabatic::device
