// SPDX-License-Identifier: Apache-2.0
#include "runtime/swap/swap_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/rounding.h"
#include "base/text.h"
#include "runtime/swap/checksum.h"

namespace anabatic::runtime::swap {
namespace {

constexpr int kMostIdle = 8;  // completions that move nothing before a piece counts as failed

std::int64_t block_bytes(const Region& region, std::int64_t block) {
  return std::min(kBlockBytes, region.bytes - block * kBlockBytes);
}
std::int64_t block_offset(const Region& region, std::int64_t block) {
  return region.offset + block * kBlockBytes;
}
std::uint64_t checksum_of(const Region& region, std::int64_t block, const std::byte* data) {
  return checksum(data, block_bytes(region, block) / kWordBytes, block * kBlockBytes / kWordBytes);
}

}  // namespace

// One call of SwapFile::transfer.
struct SwapFile::Transfer {
  bool is_write;
  const Region& region;
  std::int64_t first;
  std::byte* data;
  bool sums;
  std::string error{};  // the first one; what is under way still ends

  std::byte* block_data(std::int64_t block) const { return data + (block - first) * kBlockBytes; }
};

SwapFile::SwapFile(const SwapOptions& options) : directory_(options.directory) {
  open(options);
  std::string refused;
  if (options.try_uring) device_ = make_uring_device(descriptor_, refused);
  if (!refused.empty()) remarks_ += "; " + refused;
  if (!device_) device_ = make_plain_device(descriptor_);
  if (options.wrap_device) device_ = options.wrap_device(std::move(device_));
  slots_.resize(static_cast<std::size_t>(device_->depth()));
}

SwapFile::~SwapFile() {
  device_.reset();
  if (descriptor_ >= 0) ::close(descriptor_);
}

// The file loses its name at once, so that nothing is left however the process ends.
void SwapFile::open(const SwapOptions& options) {
  std::error_code ignored;
  std::filesystem::create_directories(directory_, ignored);
  std::string name = (directory_ / "anabatic-swap-XXXXXX").string();
  descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor_ < 0)
    throw ResourceError(
        fmt::format("[swap] expected to make a file in {} (memory.swap_directory), "
                    "got: {}",
                    directory_.string(), std::strerror(errno)));
  if (options.try_direct) {
    const int direct = ::open(name.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
    if (direct < 0) {
      remarks_ += fmt::format("; direct I/O refused: {}", std::strerror(errno));
    } else {
      const int buffered = descriptor_;
      descriptor_ = direct;
      is_direct_ = try_direct_read();
      if (!is_direct_) {
        descriptor_ = buffered;
        remarks_ += "; direct I/O refused by a read";
      }
      ::close(is_direct_ ? buffered : direct);
    }
  }
  ::unlink(name.c_str());
}

// Some file systems refuse direct I/O only when it happens.
bool SwapFile::try_direct_read() const {
  alignas(kSectorBytes) static std::byte buffer[kSectorBytes];
  return ::pread(descriptor_, buffer, sizeof buffer, 0) >= 0;
}

std::size_t SwapFile::add(std::string_view name, std::int64_t bytes) {
  const std::int64_t size = round_to_sectors(bytes);
  int error = 0;
  if (size > 0) {
    do error = ::fallocate(descriptor_, 0, bytes_, size) == 0 ? 0 : errno;
    while (error == EINTR);
    // Without reservation a full disk shows at the first write beyond it.
    if (error == EOPNOTSUPP) error = ::ftruncate(descriptor_, bytes_ + size) == 0 ? 0 : errno;
  }
  if (error != 0)
    throw ResourceError(fmt::format(
        "[swap] {}: expected room for {} more ({}, after {} of other states), got: {}",
        directory_.string(), format_bytes(size), name, format_bytes(bytes_), std::strerror(error)));
  regions_.push_back({std::string(name), bytes_, size, static_cast<std::int64_t>(blocks_.size()),
                      ceil_div(size, kBlockBytes)});
  blocks_.resize(blocks_.size() + static_cast<std::size_t>(regions_.back().num_blocks));
  bytes_ += size;
  return regions_.size() - 1;
}

void SwapFile::start(const Transfer& transfer, int slot) {
  const Slot& of = slots_[static_cast<std::size_t>(slot)];
  device_->start(slot, {transfer.is_write, block_offset(transfer.region, of.block) + of.done,
                        transfer.block_data(of.block) + of.done, of.bytes - of.done});
}

void SwapFile::begin_block(const Transfer& transfer, int slot, std::int64_t block) {
  Block& of = blocks_[static_cast<std::size_t>(transfer.region.first_block + block)];
  const std::int64_t bytes = block_bytes(transfer.region, block);
  if (transfer.is_write) {
    of.is_written = true;
    if (transfer.sums)
      of.checksum = checksum_of(transfer.region, block, transfer.block_data(block));
  } else if (!of.is_written) {
    std::memset(transfer.block_data(block), 0, static_cast<std::size_t>(bytes));
    return;
  }
  slots_[static_cast<std::size_t>(slot)] = {false, block, 0, bytes, 0};
  start(transfer, slot);
}

std::string SwapFile::mismatch(const Region& region, std::int64_t block,
                               std::uint64_t found) const {
  const std::uint64_t expected =
      blocks_[static_cast<std::size_t>(region.first_block + block)].checksum;
  if (found == expected) return {};
  return fmt::format(
      "[swap] file in {}: {} at offset {}: expected {} bytes of checksum {:016x}, found {:016x}; "
      "the disk returned other bytes than were written",
      directory_.string(), region.name, block_offset(region, block), block_bytes(region, block),
      expected, found);
}

void SwapFile::finish_block(Transfer& transfer, const Slot& slot) {
  if (!transfer.sums || transfer.is_write || !transfer.error.empty()) return;
  transfer.error =
      mismatch(transfer.region, slot.block,
               checksum_of(transfer.region, slot.block, transfer.block_data(slot.block)));
}

void SwapFile::set_checksums(std::size_t region, std::span<const std::uint64_t> of_blocks) {
  const Region& of = regions_.at(region);
  ANABATIC_CHECK(static_cast<std::int64_t>(of_blocks.size()) == of.num_blocks,
                 "[swap] {} checksums of {} blocks", of_blocks.size(), of.num_blocks);
  for (std::size_t block = 0; block < of_blocks.size(); ++block)
    blocks_[static_cast<std::size_t>(of.first_block) + block].checksum = of_blocks[block];
}

void SwapFile::compare_checksums(std::size_t region,
                                 std::span<const std::uint64_t> of_blocks) const {
  const Region& of = regions_.at(region);
  ANABATIC_CHECK(static_cast<std::int64_t>(of_blocks.size()) == of.num_blocks,
                 "[swap] {} checksums of {} blocks", of_blocks.size(), of.num_blocks);
  for (std::size_t block = 0; block < of_blocks.size(); ++block) {
    if (!blocks_[static_cast<std::size_t>(of.first_block) + block].is_written) continue;
    const std::string error = mismatch(of, static_cast<std::int64_t>(block), of_blocks[block]);
    if (!error.empty()) throw ResourceError(error);
  }
}

void SwapFile::complete(Transfer& transfer, const Completion& completion) {
  Slot& slot = slots_[static_cast<std::size_t>(completion.slot)];
  const auto fail = [&](const std::string& found) {
    slot.is_free = true;
    if (transfer.error.empty())
      transfer.error =
          fmt::format("[swap] file in {}: {} at offset {}: expected to {} {} bytes, found: {}",
                      directory_.string(), transfer.region.name,
                      block_offset(transfer.region, slot.block) + slot.done,
                      transfer.is_write ? "write" : "read", slot.bytes - slot.done, found);
  };
  const bool again = completion.result == -EINTR || completion.result == -EAGAIN;
  if (completion.result < 0 && !again)
    return fail(std::strerror(static_cast<int>(-completion.result)));
  // What ends inside a sector is moved again from that sector on.
  const std::int64_t moved =
      again ? 0 : std::min(completion.result, slot.bytes - slot.done) / kSectorBytes * kSectorBytes;
  slot.num_idle = moved > 0 ? 0 : slot.num_idle + 1;
  slot.done += moved;
  if (slot.done == slot.bytes) {
    slot.is_free = true;
    return finish_block(transfer, slot);
  }
  if (slot.num_idle > kMostIdle || (!transfer.is_write && completion.result == 0))
    return fail(fmt::format("{} bytes, then the end", slot.done));
  if (!transfer.error.empty()) {
    slot.is_free = true;
    return;
  }
  start(transfer, completion.slot);
}

void SwapFile::transfer(bool is_write, std::size_t region, std::int64_t first,
                        std::int64_t num_blocks, std::byte* data, bool sums) {
  ANABATIC_CHECK(region < regions_.size() && first >= 0 && num_blocks >= 0 &&
                     first + num_blocks <= regions_[region].num_blocks,
                 "[swap] blocks [{}, +{}) of region {}", first, num_blocks, region);
  Transfer transfer{is_write, regions_[region], first, data, sums};
  std::int64_t next = first;
  const std::int64_t end = first + num_blocks;
  int num_busy = 0;
  for (;;) {
    for (std::size_t slot = 0; slot < slots_.size() && transfer.error.empty(); ++slot)
      while (slots_[slot].is_free && next < end) {
        begin_block(transfer, static_cast<int>(slot), next++);
        num_busy += !slots_[slot].is_free;
      }
    if (num_busy == 0) break;
    const Completion completion = device_->wait();
    complete(transfer, completion);
    num_busy -= slots_[static_cast<std::size_t>(completion.slot)].is_free;
  }
  if (!transfer.error.empty()) throw ResourceError(transfer.error);
}

std::string SwapFile::describe() const {
  return fmt::format("{}, {} in {}{}", device_->name(), is_direct_ ? "direct I/O" : "buffered I/O",
                     directory_.string(), remarks_);
}

}  // namespace anabatic::runtime::swap
