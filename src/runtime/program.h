// SPDX-License-Identifier: Apache-2.0
// The flat form that runs: calls whose operands are (arena, offset), and for each action the lists
// of calls that micro-batches run. Knows neither Graph nor Plan.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/name.h"
#include "comm/exchange.h"
#include "kernels/kernel.h"
#include "spec/attributes.h"
#include "spec/execution.h"
#include "spec/mesh.h"
#include "spec/state.h"
#include "spec/step.h"
#include "tensor/tensor_type.h"

namespace anabatic::runtime {

using spec::Action;
using spec::Arena;
using spec::StepEntry;

struct Operand {
  Arena arena = Arena::kFrame;
  // kPersistent: index into Program::states. A gradient in any arena: into Program::gradients.
  std::int32_t state = -1;
  // Bytes from the arena's (or state's) base; a multiple of 64. kExternal: only tells operands of
  // the caller apart, whose bytes lie anywhere.
  std::int64_t offset = 0;
  TensorType type{};
};

struct Call {
  const kernels::Kernel* kernel = nullptr;
  spec::Attributes attributes{};
  std::vector<Operand> inputs{}, outputs{};
  std::vector<bool> adds{};  // per output: `+=` instead of `=`
  std::int64_t workspace_offset = 0, workspace_bytes = 0;
  Arena workspace_arena = Arena::kFrame;  // or kGradient, in a layout of a first micro-batch
  std::vector<std::byte> prepared{};
  std::string label{};  // "layers.3.experts grouped_linear backward_weight": profiler and trace
};

struct StateSlot {
  Name name{};
  spec::StatePart part{};
  TensorType type{};
  bool is_on_disk = false;  // calls read and write it in a window of the frame
};

// Bytes on disk for an activation, between the forward and the backward of a micro-batch.
struct SwapRegion {
  std::string name;
  std::int64_t bytes = 0;
};

// Bytes of the frame that hold a state on disk from its read to the end of its write. Or a copy of
// the state, which is only read, or the bytes that are written to a region or read from it.
struct SwapWindow {
  std::int32_t state = -1;   // index into Program::states; -1: of a region
  std::int32_t region = -1;  // index into Program::regions
  std::int64_t offset = 0;   // in the frame arena; a multiple of swap::kSectorBytes
  bool is_copy = false;      // of the state, read in every micro-batch
};

enum class SwapStep : std::uint8_t { kWrite, kRead, kAwaitWrite, kAwaitRead };

// What happens to a window before a call, or after the last one of a variant.
struct SwapPoint {
  std::int32_t call = 0;  // index into the calls of the variant; their number: after the last
  SwapStep step{};
  std::int32_t window = 0;  // index into Program::windows
  bool operator==(const SwapPoint&) const = default;
};

// The inputs of op exchange_rows (ops/ranks/exchange_rows.h). Counts are read when it is posted.
struct RowOperands {
  Operand input{}, send_counts{}, receive_counts{};
  std::optional<Operand> row_map{};
  std::int64_t top_k = 1;
};

// What ranks exchange while calls run. All operands belong to the communicator from the post to the
// await.
struct Exchange {
  comm::ExchangeKind kind{};
  comm::Method method{};              // chosen for the ranks that run it
  std::string reason{};               // why this one
  spec::Axes group{};                 // the ranks that take part differ along these axes alone
  Operand buffer{};                   // of this rank; exchanged in place, or received
  std::optional<RowOperands> rows{};  // of exchange_rows
  std::string label{};
};

// What happens to an exchange before a call, or after the last one of a variant.
enum class ExchangeStep : std::uint8_t { kPost, kAwait };
struct ExchangePoint {
  std::int32_t call = 0;  // index into the calls of the variant; their number: after the last
  ExchangeStep step{};
  std::int32_t exchange = 0;  // index into Program::exchanges
  bool operator==(const ExchangePoint&) const = default;
};

struct NamedOperand {
  std::string name;
  Operand operand;
};

// The calls of an action for some micro-batches of a step. A backward reads values that the forward
// of its layout wrote to the frame.
struct Variant {
  spec::Places places{};                 // of these micro-batches
  std::int32_t layout = 0;               // index into Program::layouts
  bool updates = false;                  // writes states; no entry of the step follows
  std::vector<std::int32_t> calls{};     // indexes into Program::calls
  std::vector<SwapPoint> swap_points{};  // ascending by call
  // Ascending by call. Posts come before awaits at the same call.
  std::vector<ExchangePoint> exchange_points{};
};

// Where the values of a micro-batch lie. Inputs, states and gradients are at one place in all
// layouts.
struct Layout {
  // Metrics and results, by name; valid until the next action that reuses their bytes.
  std::vector<NamedOperand> outputs;
};

struct Program {
  std::vector<Call> calls;  // variants share them
  // Those of kSumLeaf are one for each level.
  std::map<Action, std::vector<Variant>> variants;
  // The first one has all outputs. A step's first micro-batch may have another. Its values may lie
  // in bytes of gradients that are not written yet, and nothing moves to or from disk meanwhile.
  std::vector<Layout> layouts{1};
  std::vector<StateSlot> states;
  std::vector<Name> gradients;
  std::vector<NamedOperand> inputs;  // batch and step inputs, by name
  // Operands of the caller: the first `num_external_inputs` are only read, the others only written.
  std::vector<NamedOperand> externals;
  std::int32_t num_external_inputs = 0;
  std::vector<SwapRegion> regions;
  // Those of states, in the order in which a step reads them; then those of copies and regions.
  std::vector<SwapWindow> windows;
  std::vector<Exchange> exchanges;  // of one layout after the other, in the order of their posts
  std::int64_t leaves = 1;          // of a step (spec/step.h)
  std::int64_t frame_bytes = 0, gradient_bytes = 0, input_bytes = 0;
  std::int32_t num_threads = 1;  // workspaces are sized for these: no larger team may run it
};

spec::VariantPlaces variant_places(const Program& program);

// The entry of an action in a step of one micro-batch: an evaluation has no other.
StepEntry lone_entry(const Program& program, Action action);

// Byte-stable text of all calls, one a line. A call that does not run at all places of its action
// is printed with its places.
std::string print(const Program& program);

}  // namespace anabatic::runtime
