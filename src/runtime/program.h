// SPDX-License-Identifier: Apache-2.0
// The flat form that runs: per action a list of calls whose operands are (arena, offset). Knows
// neither Graph nor Plan.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/name.h"
#include "kernels/kernel.h"
#include "spec/attributes.h"
#include "spec/execution.h"
#include "spec/state.h"
#include "tensor/tensor_type.h"

namespace anabatic::runtime {

using spec::Action;
using spec::Arena;
using spec::WriteMode;

struct Operand {
  Arena arena = Arena::kFrame;
  std::int32_t state = -1;  // kPersistent: index into Program::states
  std::int64_t offset = 0;  // bytes from the arena's (or state's) base; a multiple of 64
  TensorType type{};
};

struct Call {
  const kernels::Kernel* kernel = nullptr;
  spec::Attributes attributes{};
  std::vector<Operand> inputs{}, outputs{};
  std::vector<WriteMode> modes{};  // per output
  std::int64_t workspace_offset = 0, workspace_bytes = 0;
  Arena workspace_arena = Arena::kFrame;  // or kGradient, in a first micro-batch
  std::vector<std::byte> prepared{};
  bool only_first_micro_batch = false;  // zero fills ahead of a first writer
  bool only_last_micro_batch = false;   // updates in the backward
  std::string label{};  // "layers.3.experts grouped_linear backward_weight": profiler and trace
};

struct StateSlot {
  Name name{};
  spec::StatePart part{};
  TensorType type{};
  bool is_on_disk = false;  // its calls find it in a window of the frame
};

// Bytes on disk for an activation, between the forward and the backward of a micro-batch.
struct SwapRegion {
  std::string name;
  std::int64_t bytes = 0;
};

// Bytes of the frame that hold a state on disk from its read to the end of its write; or a copy of
// it, which is only read; or what of a region is written, or read.
struct SwapWindow {
  std::int32_t state = -1;   // index into Program::states; -1: of a region
  std::int32_t region = -1;  // index into Program::regions
  std::int64_t offset = 0;   // in the frame arena; a multiple of swap::kSectorBytes
  bool is_copy = false;      // of the state, brought in every micro-batch
};

enum class SwapStep : std::uint8_t { kWrite, kRead, kAwaitWrite, kAwaitRead };

// What happens to a window ahead of a call, or behind the last one of an action.
struct SwapPoint {
  std::int32_t call = 0;  // index into the calls of the action; their number: behind the last
  SwapStep step{};
  std::int32_t window = 0;  // index into Program::windows
};

struct NamedOperand {
  std::string name;
  Operand operand;
};

// Forward and backward of a step's first micro-batch, where it has calls of its own: values may lie
// in the gradients' arena, where gradients have not begun.
struct FirstMicroBatch {
  std::map<Action, std::vector<Call>> calls;  // empty: those of every micro-batch
  std::vector<NamedOperand> outputs;          // of these calls
};

struct Program {
  std::map<Action, std::vector<Call>> calls;
  FirstMicroBatch first{};  // reads the same inputs; nothing moves to or from disk beside it
  std::vector<StateSlot> states;
  std::vector<NamedOperand> inputs;  // batch and step inputs, by name
  std::vector<NamedOperand>
      outputs;  // metrics and results, by name; valid until the next action that reuses their bytes
  std::vector<SwapRegion> regions;
  // Of states, in the order in which a step reads them; then of copies and regions.
  std::vector<SwapWindow> windows;
  std::map<Action, std::vector<SwapPoint>> swap_points;  // ascending by call
  std::int64_t frame_bytes = 0, gradient_bytes = 0, input_bytes = 0;
  bool single_micro_batch = false;  // gradients share the frame: only a first micro-batch may run
  std::int32_t num_threads = 1;     // that workspaces were booked for: no larger team may run it
};

// Byte-stable text of all calls, one a line.
std::string print(const Program& program);

}  // namespace anabatic::runtime
