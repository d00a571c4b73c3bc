// SPDX-License-Identifier: Apache-2.0
// A kernel is a row of an ordered table: plain functions, chosen once at plan time. No class
// hierarchy, no registration by side effect. Tables: ref/table.cpp (slow, obvious, accepts all),
// cpu/table.cpp (fast).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function.h"
#include "spec/problem.h"
#include "tensor/tensor_type.h"

namespace anabatic::device {
class ThreadTeam;
}

namespace anabatic::kernels {

// Supported, or a reason, which --explain-dispatch prints.
struct Support {
  std::string reason;  // empty: supported
  explicit operator bool() const { return reason.empty(); }
};
inline Support yes() { return {}; }
inline Support no(std::string reason) { return {std::move(reason)}; }

class ByteWatch;      // byte_watch.h
struct CodingCounts;  // coding_counts.h

// What a call runs on.
struct Launch {
  device::ThreadTeam* team = nullptr;  // may be null for rows of ref, which run on the caller
};

// One call: views already resolved from arenas. An optional input that is absent does not appear in
// `inputs`.
struct Arguments {
  std::span<const TensorView> inputs, outputs;
  const spec::Attributes* attributes;
  std::byte* workspace;  // of workspace_bytes, 64-byte aligned, contents undefined
  const void* prepared;  // what `prepare` made, 64-byte aligned; null when it made nothing
  std::span<const bool>
      accumulate;  // per output: `+=` instead of `=`; true only for ops whose schema allows it
  Launch launch;
  ByteWatch* watch = nullptr;      // gets what Kernel::watched_outputs names; null: none
  CodingCounts* counts = nullptr;  // gets what an int8 product counts of its rows; null: none
  std::string_view label{};        // of the call, for reports: "layers.3.mlp my_op forward"
};

struct Kernel {
  std::string_view name;  // "cpu:grouped_linear_avx512_bf16": device, op, variant
  std::string_view op;
  Function<Support(const spec::Problem&)> supports;
  Function<std::int64_t(const spec::Problem&)> workspace_bytes;  // null: none
  Function<std::vector<std::byte>(const spec::Problem&)>
      prepare;  // null: nothing; blockings, tables, constants
  Function<void(const Arguments&)> run;
  // Bytes that a call cut by the attribute `slices` reads and writes in addition to an uncut one:
  // weights that it packs, sums that it reads more often. Null: none.
  std::int64_t (*slicing_bytes)(const spec::Problem&) = nullptr;
  // The outputs, as bits, whose bytes a call with such outputs reports to a watch. Null: none.
  std::uint32_t (*watched_outputs)(const spec::Attributes&,
                                   std::span<const TensorType> outputs) = nullptr;
};

// Rows of all ops, in alphabetical order of ops; for one op the best first.
std::span<const Kernel> ref_table();
std::span<const Kernel> cpu_table();
// Rows of cpu_table for ops with f16 operands, by way of f32 (cpu/widened/widened_rows.h).
std::span<const Kernel> cpu_widened_table();

// The table of a device, whose rows its name begins: "cpu:". Ref's rows run on every device.
struct DeviceTable {
  std::string_view device;
  std::span<const Kernel> (*rows)();
};
// In order of preference, ref last.
std::span<const DeviceTable> device_tables();

// All rows for an op in order of preference. Empty for an unknown op.
std::vector<const Kernel*> candidates(std::string_view op);
using FindKernels = Function<std::vector<const Kernel*>(std::string_view op)>;

// The row of that full name; null if there is none.
const Kernel* find_kernel(std::string_view name);

}  // namespace anabatic::kernels
