// SPDX-License-Identifier: Apache-2.0
// What a node costs in time: the roofline of the machine's measured peaks over the share of it that
// kernels reach. bench/calibration measures the shares.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "ir/graph.h"
#include "plan/plan.h"
#include "spec/device_spec.h"

namespace anabatic::plan {

// Of a disk that states stand on, one transfer after the other.
struct DiskSpeed {
  double read_bytes_per_second = 1e9, written_bytes_per_second = 1e9;
};

struct OpEfficiency {
  // By "OP bf16" or "OP fp32" (see price_key): the roof's time over the time measured beyond
  // fixed_seconds, > 0. May exceed 1 where operands stay in a cache.
  std::map<std::string, double, std::less<>> share_of_roof{};
  // By the same keys, >= 0: what a call takes however few its tokens, with so many bytes of weights
  // (weight_bytes below); of more weights in proportion. No entry: of any.
  std::map<std::string, double, std::less<>> fixed_seconds{}, fixed_weight_bytes{};
  double seconds_a_call = 2e-6;  // where it has no entry: to wake the team and to leave it
  // Rows that attend to each other: attention's estimate takes all its rows for one causal
  // document. 0: they are.
  std::int64_t sequence_length = 0;
  DiskSpeed disk{};
};

// Shares of a plain machine, for where nothing was measured.
OpEfficiency default_efficiency();

// What attention computes over what is unmasked, in a causal document of `length` rows: kernels
// work on blocks. `window` as the op has it.
double attention_blocks_ratio(std::int64_t length, std::int64_t window = 0);

// Which measured share a node goes by: its op, or one that does the same work, and whether it reads
// bf16.
std::string price_key(const ir::Graph& graph, const ir::Node& node);

// Fills peaks and bandwidth that were not measured with those of a common core of that instruction
// set, times threads.
spec::DeviceSpec with_peaks(spec::DeviceSpec device);

// Of the matrices among a node's operands that do not grow with tokens: parameters, what is packed
// or reloaded of them, and their gradients.
std::int64_t weight_bytes(const ir::Graph& graph, const ir::Node& node);

// Of one call of `node`. The device's peaks are with_peaks'. 0 for `accumulate`.
double predicted_seconds(const ir::Graph& graph, const ir::Node& node,
                         const spec::DeviceSpec& device, const OpEfficiency& efficiency);

// Of codes (`quantize`) of a matrix of `type`, made behind the product that makes it.
double codes_behind_product_seconds(const TensorType& type, const spec::DeviceSpec& device,
                                    const OpEfficiency& efficiency);

// Of codes of a matrix of `type` (`dequantize`), read by the gradient behind a product.
double codes_in_gradient_seconds(const TensorType& type, const spec::DeviceSpec& device,
                                 const OpEfficiency& efficiency);

// Of an activation of `type` that comes out of the gradient behind a product: it is written.
double activation_beside_gradient_seconds(const TensorType& type, const spec::DeviceSpec& device);

// Of a call that is cut, beside predicted_seconds: of kernels::Kernel::slicing_bytes.
double slicing_seconds(std::int64_t bytes, const spec::DeviceSpec& device);

// The time of `node` at the roof, with attention at the blocks of `efficiency.sequence_length`.
double roof_seconds(const ir::Graph& graph, const ir::Node& node, const spec::DeviceSpec& device,
                    const OpEfficiency& efficiency);

struct StepPrice {
  double seconds = 0;  // forward and backward of every micro-batch, the update, waits for the disk
  double flops = 0;    // by the ops' own estimates: recomputed work counts
  double forward_seconds = 0, backward_seconds = 0, update_seconds = 0;
  // That calls wait for the disk (plan/transfers.h), and lose to what moves (plan/offload.h).
  double disk_seconds = 0;
};

// Of a planned step of `num_micro_batches`; zero fills included.
StepPrice price_step(const ir::Graph& graph, const Plan& plan, const spec::DeviceSpec& device,
                     const OpEfficiency& efficiency, std::int64_t num_micro_batches);

// The same by the segments of the nodes, "" for those without; waits for the disk are in none.
// `with_update`: the action of the update counts too.
std::map<std::string, double> price_segments(const ir::Graph& graph, const Plan& plan,
                                             const spec::DeviceSpec& device,
                                             const OpEfficiency& efficiency,
                                             std::int64_t num_micro_batches, bool with_update);

}  // namespace anabatic::plan
