// SPDX-License-Identifier: Apache-2.0
// The plan: a value computed once from (Graph, DeviceSpec, options): kernel per node, order,
// addresses, predicted peaks.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "analysis/liveness.h"
#include "ir/graph.h"
#include "kernels/kernel.h"
#include "spec/decisions.h"
#include "spec/execution.h"
#include "spec/step.h"

namespace anabatic::plan {

// A span of positions in the order forward ++ backward ++ update.
using analysis::Lifetime;

using spec::kAlignmentBytes;

struct PlannedBuffer {  // bytes that one value or several aliases occupy
  ir::ValueId value{};  // the one of the lowest id
  spec::Arena arena{};
  std::int32_t state = -1;             // index into Graph::states; -1 for frame and input
  std::int64_t offset = 0, bytes = 0;  // in the arena; persistent: 0, each state is its own base
  Lifetime lifetime{};
};

// How an output is written. kFirstAssigns: `=` in the micro-batch that begins a step
// (spec::kLeafBegins), `+=` in later ones.
enum class WriteMode : std::uint8_t { kAssign, kAccumulate, kFirstAssigns };

// Zeroes written before a node whose op leaves rows untouched.
enum class ZeroFill : std::uint8_t { kNone, kFirstMicroBatch, kAlways };

struct PlannedNode {
  ir::NodeId node{};
  const kernels::Kernel* kernel = nullptr;
  std::int64_t workspace_offset = 0, workspace_bytes = 0;
  spec::Arena workspace_arena = spec::Arena::kFrame;  // as a value's would be
  std::int64_t slicing_bytes = 0;                     // kernels::Kernel::slicing_bytes
  std::vector<WriteMode> modes{};                     // per output
  ZeroFill zero_fill = ZeroFill::kNone;
  const kernels::Kernel* zero_kernel = nullptr;  // the row of `fill`, when zero_fill is not kNone
  bool is_offloaded = false;                     // no call: an Offload does it
  bool is_exchange = false;                      // no call: an Exchange does it
  bool is_call() const { return !is_offloaded && !is_exchange; }
};

// A state on disk that is in memory only around its update: its buffer is a window of the frame.
// Other readers read copies (Offload). Positions as in Lifetime.
struct SwapWindow {
  std::int32_t buffer = -1;       // index into Plan::buffers: the window, in the frame arena
  std::int64_t bytes = 0;         // that move: whole sectors
  std::int32_t read_at = 0;       // its read is queued before this position
  std::int32_t use = 0, end = 0;  // positions that use it: [use, end)
  // Its write is awaited before this position: of the same step, or of the next one if it is below
  // `end`.
  std::int32_t written_by = kNoPosition;
  static constexpr std::int32_t kNoPosition = -1;
};

// A value that comes from disk, as the output of a node `reload`. Its input is a value that is
// written after its last use in the forward and read for the backward, or a parameter on disk, of
// which this is a copy for one reader. Positions as in Lifetime.
struct Offload {
  static constexpr std::int32_t kNoPosition = -1;
  ir::NodeId reload{};
  std::int64_t bytes = 0;   // that move: whole sectors
  std::int32_t state = -1;  // index into Graph::states: the parameter; -1: a value of the frame
  // Its write is queued before `write_at` and awaited before `written_by` (kNoPosition for a
  // parameter). Its read is queued before `read_at` and awaited before the node, at `needed_at`.
  std::int32_t write_at = kNoPosition, written_by = kNoPosition, read_at = 0, needed_at = 0;
  bool is_of_state() const { return state >= 0; }
};

// An exchange between ranks, of a node that is no call. Its bytes, inputs and outputs, belong to
// the communicator from its post to its await. Positions as in Lifetime.
struct Exchange {
  ir::NodeId node{};
  std::int32_t posted_at = 0;  // the position of the node
  // It is complete before this position. One that is not of the update is complete before the
  // micro-batch ends: at the latest after its last node.
  std::int32_t awaited_at = 0;
};

struct Plan {
  std::string name;  // of the graph
  // Every node except `accumulate`, which is never a call: its contributions share the bytes of
  // the gradient state.
  std::map<spec::Action, std::vector<PlannedNode>> orders;
  std::vector<PlannedBuffer> buffers;
  std::vector<std::int32_t> buffer_of_value;  // by ValueId; -1 for values that nothing touches
  std::vector<SwapWindow> windows;  // in the order of their reads, which is that of their uses
  std::int64_t frame_bytes = 0, gradient_bytes = 0, input_bytes = 0, persistent_bytes = 0;
  std::int64_t external_bytes = 0;    // of operands of the caller, each from its own offset on
  std::vector<Offload> offloads;      // ascending by needed_at; copies of parameters among them
  std::vector<Exchange> exchanges;    // ascending by posted_at
  std::int64_t disk_bytes = 0;        // of states on disk, and of offloaded values
  std::int64_t frame_live_bytes = 0;  // most frame bytes alive at once: a bound on frame_bytes
  // The micro-batches that it is for. Of a step's only one, gradients lie in the frame; of its
  // first one, values of the frame may lie in the gradients' arena (plan/first_micro_batch.h).
  spec::Places places = spec::kEveryPlace;
  bool has_gradients_in_frame() const { return places == spec::Places{spec::Place::kOnly}; }
  bool has_values_among_gradients() const { return places == spec::Places{spec::Place::kFirst}; }
  std::int64_t peak_bytes() const {
    return frame_bytes + gradient_bytes + input_bytes + persistent_bytes;
  }
};

struct DiskOptions {
  bool optimizer_state = false;  // moments of at least `min_bytes` are on disk
  bool masters = false;          // and the lower 16 bits of parameters (passes/split_parameters.h)
  // And what the model reads of parameters; planners see the graph's copies of them
  // (passes/reload_parameters.h).
  bool parameters = false;
  std::int64_t min_bytes = 4096;
  std::int64_t min_parameter_bytes = std::int64_t{32} << 10;  // as fp32
  // Names (plan/hints.h): states of hot parameters stay; with only_cold only cold ones move.
  std::vector<std::string> hot{}, cold{};
  bool only_cold = false;
  // Nodes whose windows fit at once when the update begins. The frame grows if it has less room.
  std::int32_t num_windows = 2;
  // Bytes of states that stay in memory, in the order of their updates. At the first updates
  // gradients still fill the frame.
  std::int64_t resident_bytes = 0;
  // Most bytes of a moment that one update reads, in a window of its own
  // (passes/slice_optimizer.h).
  std::int64_t slice_bytes = std::int64_t{8} << 20;
};

struct OpEfficiency;

struct PlanOptions {
  bool trivial = false;  // given order, no byte used twice, nothing in place, `reload` a copy
  // Of a step's only micro-batch, gradients live from their first contribution to their last reader
  // and share the frame's bytes. The trivial planner leaves them in their own arena, for every
  // place.
  spec::Places places = spec::kEveryPlace;
  std::string only_kernels{};  // rows whose name starts with it; empty: all
  kernels::FindKernels find_kernels = kernels::candidates;
  DiskOptions disk{};
  // Prices for the times of transfers; null: `reload` is a copy.
  const OpEfficiency* efficiency = nullptr;
  spec::OffloadSpans offloads{};  // from an earlier plan (plan/offload.h)
  // The graph's inputs and outputs are operands of the caller (spec::Arena::kExternal). Outputs are
  // written straight there, and inputs are only read.
  bool external_operands = false;
  bool overlaps_exchanges = true;                   // false, or trivial: each is awaited at once
  std::vector<std::string>* explanation = nullptr;  // gets one line a node of --explain-dispatch
};

// Plans and verifies. Unsupported when a node has no kernel.
Plan make_plan(const ir::Graph& graph, const spec::DeviceSpec& device,
               const PlanOptions& options = {});

// Throws InternalError "[plan verifier] RULE: ...". Shares no code with the planners: it runs the
// plan on a map of which value every byte holds.
void verify(const ir::Graph& graph, const Plan& plan);

// Byte-stable text: decisions first, predicted bytes last.
std::string print(const ir::Graph& graph, const Plan& plan);

// Hash of the decisions, not of the predictions.
std::uint64_t hash(const ir::Graph& graph, const Plan& plan);

// A node in words, from its tag: "layers.3.experts grouped_linear backward_weight".
std::string node_label(const ir::Node& node);

// kRecompute, kBackwardInput and kBackwardWeight are all kBackward.
spec::Action action_of(ir::Phase phase);

// accumulate is the one op that is planned but not called.
bool is_accumulate(const ir::Node& node);

}  // namespace anabatic::plan
