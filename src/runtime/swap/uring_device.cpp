// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "runtime/swap/block_device.h"

namespace anabatic::runtime::swap {
namespace {

constexpr int kDepth = 16;
constexpr int kBatch = 8;                                 // pieces that are submitted at once
constexpr std::size_t kPartBytes = std::size_t{1} << 30;  // as much as the system registers in one

class UringDevice : public BlockDevice {
 public:
  explicit UringDevice(int descriptor) : descriptor_(descriptor) {}
  ~UringDevice() override {
    if (is_open_) io_uring_queue_exit(&ring_);
  }
  UringDevice(const UringDevice&) = delete;
  UringDevice& operator=(const UringDevice&) = delete;

  // 0, or the error that the system gave.
  int open() {
    const int result = io_uring_queue_init(kDepth, &ring_, 0);
    is_open_ = result == 0;
    return -result;
  }

  std::string_view name() const override { return "io_uring"; }
  int depth() const override { return kDepth; }
  // Registers it, so that the system does not look up and pin the pages of every piece.
  // Where it refuses (a limit of locked memory), pieces go as any others.
  void use_memory(std::span<const std::span<std::byte>> memory) override {
    if (!parts_.empty()) io_uring_unregister_buffers(&ring_);
    parts_.clear();
    for (const std::span<std::byte> bytes : memory)
      for (std::size_t at = 0; at < bytes.size(); at += kPartBytes)
        parts_.push_back({bytes.data() + at, std::min(kPartBytes, bytes.size() - at)});
    if (parts_.empty()) return;
    const auto count = static_cast<unsigned>(parts_.size());
    if (io_uring_register_buffers(&ring_, parts_.data(), count) != 0) parts_.clear();
  }
  void start(int slot, const Piece& piece) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    ANABATIC_CHECK(entry != nullptr, "[swap] more than {} pieces under way", kDepth);
    const auto bytes = static_cast<unsigned>(piece.bytes);
    const auto offset = static_cast<std::uint64_t>(piece.offset);
    const int part = part_of(piece);
    if (piece.is_write && part >= 0)
      io_uring_prep_write_fixed(entry, descriptor_, piece.data, bytes, offset, part);
    else if (piece.is_write)
      io_uring_prep_write(entry, descriptor_, piece.data, bytes, offset);
    else if (part >= 0)
      io_uring_prep_read_fixed(entry, descriptor_, piece.data, bytes, offset, part);
    else
      io_uring_prep_read(entry, descriptor_, piece.data, bytes, offset);
    io_uring_sqe_set_data64(entry, static_cast<std::uint64_t>(slot));
    if (++num_prepared_ == kBatch) submit();
  }
  Completion wait() override {
    io_uring_cqe* entry = nullptr;
    if (num_prepared_ > 0 && io_uring_peek_cqe(&ring_, &entry) != 0) submit();
    int error = 0;
    do error = io_uring_wait_cqe(&ring_, &entry);
    while (error == -EINTR);
    ANABATIC_CHECK(error == 0, "[swap] io_uring_wait_cqe: {}", std::strerror(-error));
    const Completion completion{static_cast<int>(io_uring_cqe_get_data64(entry)), entry->res};
    io_uring_cqe_seen(&ring_, entry);
    return completion;
  }

 private:
  // Tells the system of all that was prepared.
  void submit() {
    while (num_prepared_ > 0) {
      const int submitted = io_uring_submit(&ring_);
      if (submitted == -EINTR || submitted == -EAGAIN) continue;
      ANABATIC_CHECK(submitted > 0, "[swap] io_uring_submit: expected {} pieces taken, got {}",
                     num_prepared_, submitted < 0 ? std::strerror(-submitted) : "none");
      num_prepared_ -= submitted;
    }
  }
  // The registered part that a whole piece lies in, or -1.
  int part_of(const Piece& piece) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(piece.data);
    const std::uintptr_t end = begin + static_cast<std::uintptr_t>(piece.bytes);
    const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const iovec& part) {
      const auto first = reinterpret_cast<std::uintptr_t>(part.iov_base);
      return first <= begin && end <= first + part.iov_len;
    });
    return found == parts_.end() ? -1 : static_cast<int>(found - parts_.begin());
  }

  int descriptor_;
  io_uring ring_{};
  bool is_open_ = false;
  int num_prepared_ = 0;      // pieces that are not submitted yet
  std::vector<iovec> parts_;  // registered memory
};

}  // namespace

std::unique_ptr<BlockDevice> make_uring_device(int descriptor, std::string& reason) {
  auto device = std::make_unique<UringDevice>(descriptor);
  const int error = device->open();
  if (error == 0) return device;
  reason = fmt::format("io_uring refused: {}", std::strerror(error));
  return nullptr;
}

}  // namespace anabatic::runtime::swap
