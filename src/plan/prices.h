// SPDX-License-Identifier: Apache-2.0
// Predicts the time of a node: its roofline time at the machine's measured peaks, divided by the
// share of the roof that kernels reach. bench/calibration measures the shares.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "ir/graph.h"
#include "plan/plan.h"
#include "spec/device_spec.h"
#include "spec/product.h"

namespace anabatic::plan {

// The speed of the disk that holds states, for one transfer after the other.
struct DiskSpeed {
  double read_bytes_per_second = 1e9, written_bytes_per_second = 1e9;
};

struct OpEfficiency {
  // By price_key ("OP bf16", "OP fp32"): roof_seconds over the time measured beyond fixed_seconds,
  // > 0. May exceed 1 where operands stay in a cache.
  std::map<std::string, double, std::less<>> share_of_roof{};
  // By the same keys, >= 0: the part of a call's time that does not depend on tokens, for so many
  // bytes of weights (weight_bytes below). It scales with these bytes, where they have an entry.
  std::map<std::string, double, std::less<>> fixed_seconds{}, fixed_weight_bytes{};
  double seconds_a_call = 2e-6;  // without an entry in fixed_seconds: wakes and joins the team
  // Rows that attend to each other. 0: all rows, as attention's own estimate takes them for one
  // causal document.
  std::int64_t sequence_length = 0;
  DiskSpeed disk{};
};

// For where nothing was measured.
OpEfficiency default_efficiency();

// Pairs that attention computes over unmasked ones, in a causal document of `length` rows: kernels
// work on blocks. `window` is the op's attribute.
double attention_blocks_ratio(std::int64_t length, std::int64_t window = 0);

// Whether it is a product with a weight in int8 panels, or a weight gradient that is asked for as
// one: its roof is the peak of int8.
bool is_int8_product(const ir::Graph& graph, const ir::Node& node);

// The key of a node's measured share: its op, or one that does the same work, and the type it
// reads.
std::string price_key(const ir::Graph& graph, const ir::Node& node);

// Fills in peaks and bandwidth that were not measured: those of a common core with that instruction
// set, times threads.
spec::DeviceSpec with_peaks(spec::DeviceSpec device);

// Bytes of the matrices among a node's operands that do not grow with tokens: parameters, their
// packed or reloaded copies, and their gradients.
std::int64_t weight_bytes(const ir::Graph& graph, const ir::Node& node);

// The time of one call of `node`. `device` has its peaks (with_peaks). 0 for `accumulate`.
double predicted_seconds(const ir::Graph& graph, const ir::Node& node,
                         const spec::DeviceSpec& device, const OpEfficiency& efficiency);

// The time by which a product takes longer because it applies a norm to x
// (spec/product_prologue.h). It is the time to copy the rows of x as often as blocks of the product
// do, at the share of norm_price_key. 0 for narrow rows on few threads (analysis/product_norms.h):
// whole steps take as long as with norms apart there, which differences of single calls do not
// tell.
double norm_in_product_seconds(const ir::Graph& graph, const ir::Node& product,
                               const spec::DeviceSpec& device, const OpEfficiency& efficiency);
// Its roof: each block of columns copies the rows, and each thread has some blocks of a weight
// gradient. x is [rows, width], the result has `out` columns. Then the key of its share: "linear
// norm bf16", "linear_weight_gradient norm fp32".
double norm_roof_seconds(std::int64_t rows, std::int64_t width, std::int64_t out, DType dtype,
                         spec::ProductRole role, const spec::DeviceSpec& device);
std::string norm_price_key(spec::ProductRole role, DType dtype);
// Times that a product copies each row of x [rows, width], with `out` columns of results.
double row_copies(std::int64_t width, std::int64_t out, spec::ProductRole role, int num_threads);

// The time by which a product takes longer because it drops elements of x: each copy of a row draws
// again, at the price of `dropout`.
double dropout_in_product_seconds(const ir::Graph& graph, const ir::Node& product,
                                  const spec::DeviceSpec& device, const OpEfficiency& efficiency);

// The time by which a product of `type` takes longer because it writes int8 values itself.
double codes_behind_product_seconds(const TensorType& type, const spec::DeviceSpec& device,
                                    const OpEfficiency& efficiency);

// The time by which an activation's gradient takes longer because it reads a matrix as int8. `type`
// is the matrix before it was quantised.
double codes_in_gradient_seconds(const TensorType& type, const spec::DeviceSpec& device,
                                 const OpEfficiency& efficiency);

// The time by which an activation's gradient takes longer because it also writes the activation.
double activation_beside_gradient_seconds(const TensorType& type, const spec::DeviceSpec& device);

// The time that cutting a call adds to predicted_seconds; `bytes` are Kernel::slicing_bytes.
double slicing_seconds(std::int64_t bytes, const spec::DeviceSpec& device);

// The time of `node` at the roof. Attention counts whole blocks of `efficiency.sequence_length`.
double roof_seconds(const ir::Graph& graph, const ir::Node& node, const spec::DeviceSpec& device,
                    const OpEfficiency& efficiency);

struct StepPrice {
  double seconds = 0;  // forward, backward, update and disk, over all micro-batches
  double flops = 0;    // by the ops' own estimates: recomputed work counts
  double forward_seconds = 0, backward_seconds = 0, update_seconds = 0;
  // Waits for the disk (plan/transfers.h), and slower calls while bytes move (plan/offload.h).
  double disk_seconds = 0;
};

// The time of a planned step of `num_micro_batches`; zero fills included.
StepPrice price_step(const ir::Graph& graph, const Plan& plan, const spec::DeviceSpec& device,
                     const OpEfficiency& efficiency, std::int64_t num_micro_batches);

// Seconds by the segments of nodes, "" for those without, and without waits for the disk.
// `with_update`: the action of the update counts too.
std::map<std::string, double> price_segments(const ir::Graph& graph, const Plan& plan,
                                             const spec::DeviceSpec& device,
                                             const OpEfficiency& efficiency,
                                             std::int64_t num_micro_batches, bool with_update);

}  // namespace anabatic::plan
