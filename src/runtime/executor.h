// SPDX-License-Identifier: Apache-2.0
// Runs the entries of a Program's steps. Owns its frame, gradient and input arenas; states belong
// to the store it is bound to, and external operands to the caller.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "device/clock.h"
#include "kernels/coding_counts.h"
#include "runtime/exchange_driver.h"
#include "runtime/program.h"
#include "runtime/state_store.h"

namespace anabatic::device {
class ThreadTeam;
}

namespace anabatic::runtime {

class SharedFrame;

// A call that has just run.
struct CallEvent {
  Action action;
  const Call& call;
  std::int32_t index;  // into Program::calls
  std::span<const TensorView> inputs, outputs;
  std::int64_t begin_nanoseconds;  // on the observer's clock
  std::int64_t nanoseconds;
};

// Sees every call of a run: for the profiler, to find where a value went wrong, and to sample the
// errors of products.
struct Observer {
  void (*on_call)(void* context, const CallEvent& event) = nullptr;  // null: none
  void* context = nullptr;
  device::Clock now = device::wall_nanoseconds;
  // Before the call, whose times are 0 then. Only with on_call. Null: none.
  void (*before_call)(void* context, const CallEvent& event) = nullptr;
};

struct ExecutorOptions {
  // Fills dead bytes with ones (NaN in every float type), so that a read of them shows. These are
  // the frame before each forward, gradients before a step's first one, and every assigned output
  // and workspace before its call (ANABATIC_POISON=1 in tests).
  bool poison = false;
  RankContext rank{};  // for a program that exchanges
  // In place of a frame of its own, for a program that neither exchanges nor moves to disk. It must
  // outlive the executor. Executors of one frame never run at the same time.
  SharedFrame* frame = nullptr;
};

class Executor {
 public:
  // Adds the program's states to the store where absent. Allocates all it will ever need; `program`
  // and `store` must outlive it. InternalError when an operand lies outside its arena,
  // InvalidArgument when the team is larger than the program was planned for.
  Executor(const Program& program, StateStore& store, device::ThreadTeam& team,
           ExecutorOptions options = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // The bytes of a batch or step input, to be filled before the action that reads it.
  // InvalidArgument for an unknown name.
  std::span<std::byte> input(std::string_view name);
  bool has_input(std::string_view name) const;

  // A result, valid until the next forward. Gradients of a program without update are outputs
  // `gradients.NAME`, complete after the last backward. InvalidArgument for an unknown name.
  TensorView output(std::string_view name) const;
  bool has_output(std::string_view name) const;

  // Runs the calls of one variant. runtime/verify_schedule.h checks which entries make a step, and
  // in which order. Allocates nothing.
  // InvalidArgument when the program has no such variant; ResourceError when the disk failed;
  // CommError when the exchanges of all ranks ended.
  void run(const StepEntry& entry);
  // The same with the addresses of Program::externals, in their order. InvalidArgument, before any
  // call, where one is null or no multiple of 64 bytes although calls use its bytes, or where an
  // output shares bytes with another operand. Operands that no call uses may be null.
  void run(const StepEntry& entry, std::span<std::byte* const> externals);
  bool has_action(Action action) const;

  // From the next run on. Observers at other places see the same calls.
  static constexpr std::size_t kNumObservers = 2;
  void observe(Observer observer, std::size_t place = 0);

  // What int8 products of this call, an index into Program::calls, have counted since the last
  // clear_counts(). Zero for others.
  const kernels::CodingCounts& counts(std::int32_t call) const;
  void clear_counts();

  // From the next run on, blocks of this call fall back by another value than its attribute
  // `fallback` has. InvalidArgument unless both are in [0, kNoFallback): the plan has no room for
  // second values otherwise.
  void set_fallback(std::int32_t call, std::int64_t fallback);

  // What each exchange of the program has taken so far, at this rank.
  std::vector<comm::CommStats> exchanges_took() const;

  // Frame unless it is shared, gradients, input and what exchanges work in, as allocated.
  std::int64_t arena_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace anabatic::runtime
