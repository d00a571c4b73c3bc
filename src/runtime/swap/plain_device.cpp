// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "runtime/swap/block_device.h"

namespace anabatic::runtime::swap {
namespace {

class PlainDevice : public BlockDevice {
 public:
  explicit PlainDevice(int descriptor) : descriptor_(descriptor) {}
  std::string_view name() const override { return "pread/pwrite"; }
  int depth() const override { return 1; }
  void start(int slot, const Piece& piece) override {
    ANABATIC_CHECK(slot == 0 && !is_busy_, "[swap] slot {} of 1", slot);
    const auto bytes = static_cast<std::size_t>(piece.bytes);
    const ssize_t moved = piece.is_write ? ::pwrite(descriptor_, piece.data, bytes, piece.offset)
                                         : ::pread(descriptor_, piece.data, bytes, piece.offset);
    result_ = moved >= 0 ? moved : -errno;
    is_busy_ = true;
  }
  Completion wait() override {
    ANABATIC_CHECK(is_busy_, "[swap] nothing is under way");
    is_busy_ = false;
    return {0, result_};
  }

 private:
  int descriptor_;
  std::int64_t result_ = 0;
  bool is_busy_ = false;
};

}  // namespace

std::unique_ptr<BlockDevice> make_plain_device(int descriptor) {
  return std::make_unique<PlainDevice>(descriptor);
}

}  // namespace anabatic::runtime::swap
