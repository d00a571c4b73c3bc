// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <liburing.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "runtime/swap/block_device.h"

namespace anabatic::runtime::swap {
namespace {

constexpr int kDepth = 8;

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
  void start(int slot, const Piece& piece) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    ANABATIC_CHECK(entry != nullptr, "[swap] more than {} pieces under way", kDepth);
    const auto bytes = static_cast<unsigned>(piece.bytes);
    const auto offset = static_cast<std::uint64_t>(piece.offset);
    if (piece.is_write)
      io_uring_prep_write(entry, descriptor_, piece.data, bytes, offset);
    else
      io_uring_prep_read(entry, descriptor_, piece.data, bytes, offset);
    io_uring_sqe_set_data64(entry, static_cast<std::uint64_t>(slot));
    int submitted = 0;
    do submitted = io_uring_submit(&ring_);
    while (submitted == -EINTR || submitted == -EAGAIN);
    ANABATIC_CHECK(submitted >= 0, "[swap] io_uring_submit: {}", std::strerror(-submitted));
  }
  Completion wait() override {
    io_uring_cqe* entry = nullptr;
    int error = 0;
    do error = io_uring_wait_cqe(&ring_, &entry);
    while (error == -EINTR);
    ANABATIC_CHECK(error == 0, "[swap] io_uring_wait_cqe: {}", std::strerror(-error));
    const Completion completion{static_cast<int>(io_uring_cqe_get_data64(entry)), entry->res};
    io_uring_cqe_seen(&ring_, entry);
    return completion;
  }

 private:
  int descriptor_;
  io_uring ring_{};
  bool is_open_ = false;
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
