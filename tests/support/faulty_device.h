// SPDX-License-Identifier: Apache-2.0
// A disk that fails as it is told to, between a swap file and its device.
#pragma once
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/swap/block_device.h"

namespace anabatic::testing {

enum class Fault { kNone, kShort, kError, kFlip, kVanish, kSlow };

struct FaultPlan {
  Fault fault = Fault::kNone;
  bool on_write = false;               // else on reads
  int after = 0;                       // transfers of that kind that go well first
  int error = EIO;                     // kError
  bool once = false;                   // else from then on
  std::chrono::milliseconds delay{2};  // kSlow: before each piece, and after it
};

class FaultyDevice : public runtime::swap::BlockDevice {
 public:
  FaultyDevice(std::unique_ptr<runtime::swap::BlockDevice> device, FaultPlan plan)
      : device_(std::move(device)),
        plan_(plan),
        pieces_(static_cast<std::size_t>(device_->depth())) {}

  std::string_view name() const override { return "faulty"; }
  int depth() const override { return device_->depth(); }
  void use_memory(std::span<const std::span<std::byte>> memory) override {
    device_->use_memory(memory);
  }
  void start(int slot, const runtime::swap::Piece& piece) override {
    Under& under = pieces_[static_cast<std::size_t>(slot)];
    const bool counts = piece.is_write == plan_.on_write;
    under = {piece, counts && num_seen_ >= plan_.after && !(plan_.once && is_over_)};
    num_seen_ += counts;
    is_over_ |= under.is_bad;
    runtime::swap::Piece given = piece;
    if (under.is_bad && plan_.fault == Fault::kShort && piece.bytes > 4096)
      given.bytes = 4096 * std::max<std::int64_t>(1, piece.bytes / 4096 / 3);
    // Late at both ends: what waits for too little meets bytes that are not there yet, or changed.
    if (plan_.fault == Fault::kSlow) std::this_thread::sleep_for(plan_.delay);
    device_->start(slot, given);
  }
  runtime::swap::Completion wait() override {
    runtime::swap::Completion completion = device_->wait();
    const Under& under = pieces_[static_cast<std::size_t>(completion.slot)];
    if (plan_.fault == Fault::kSlow) std::this_thread::sleep_for(plan_.delay);
    if (!under.is_bad) return completion;
    if (plan_.fault == Fault::kError) completion.result = -plan_.error;
    if (plan_.fault == Fault::kVanish) completion.result = 0;
    if (plan_.fault == Fault::kShort) completion.result -= completion.result > 4096 ? 1000 : 0;
    if (plan_.fault == Fault::kFlip) under.piece.data[completion.result / 2] ^= std::byte{16};
    return completion;
  }

 private:
  struct Under {
    runtime::swap::Piece piece{};
    bool is_bad = false;
  };
  std::unique_ptr<runtime::swap::BlockDevice> device_;
  FaultPlan plan_;
  std::vector<Under> pieces_;
  int num_seen_ = 0;  // transfers of the plan's kind
  bool is_over_ = false;
};

inline runtime::swap::DeviceWrapper with_fault(FaultPlan plan) {
  return [plan](std::unique_ptr<runtime::swap::BlockDevice> device) {
    return std::make_unique<FaultyDevice>(std::move(device), plan);
  };
}

}  // namespace anabatic::testing
