// SPDX-License-Identifier: Apache-2.0
// What ranks exchange, as plain data: who takes part, what each has, and what each gets.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace anabatic::comm {

enum class ExchangeKind : std::uint8_t {
  kAllGather,
  kBroadcast,  // an all_gather in which one member alone has rows
  kSend,       // a broadcast in a group of two
  kReduceScatter,
  kAllReduce,
  kExchangeRows
};
inline constexpr std::uint32_t kNumExchangeKinds = 6;
std::string_view to_string(ExchangeKind kind);  // "all_gather"
bool adds(ExchangeKind kind);                   // whether it sums

std::int64_t total_of(std::span<const std::int64_t> counts);

// Who moves the bytes, and adds (methods.h).
enum class Method : std::uint8_t { kOrdered, kMpi };

// Rows lie one after the other, of one member after the other, in the order of the group:
//
//   kind            rows of input                          rows of output
//   all_gather      counts[me]                             all counts
//   reduce_scatter  all counts; every member adds to all   counts[me], summed
//   all_reduce      all counts; every member adds to all   all counts, summed
//   exchange_rows   all send_counts: those for each member all counts: those from each member
//
// Broadcast and send are as all_gather. The sum of counts[i] is made by member i.
//
// Sums are of f32, of f64, or of bf16 through f32 with one rounding. By our own messages they add
// by a balanced binary tree over the members (sum.h), so that bits do not depend on time.
//
// In place: an all_gather's input may be its rows of the output, a reduce_scatter's output its rows
// of the input, of which the others are undefined then, an all_reduce's output its input. Otherwise
// input and output do not overlap.
struct Exchange {
  ExchangeKind kind{};
  Method method{};
  std::span<const std::int32_t> group{};  // ranks; without the own one, nothing happens
  std::span<const std::int64_t> counts{};
  std::span<const std::int64_t> send_counts{};  // exchange_rows
  // exchange_rows: the row of the input for each one to send, times index_divisor; null: they lie
  // in this order.
  const std::int32_t* row_index = nullptr;
  std::int32_t index_divisor = 1;
  std::int64_t row_bytes = 0;
  DType dtype = DType::kFloat32;  // of sums
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // null: this member gets nothing (a broadcast's or send's source)
  std::string_view label{};     // for people: "layers.3.combine, micro-batch 1"
};

// Bytes that an exchange needs in addition to input and output, aligned to 64, while under way.
std::int64_t workspace_bytes(std::int64_t group_size, Method method = Method::kOrdered);

// Bytes that a member sends to others, and receives from them.
std::int64_t sent_bytes(const Exchange& exchange, std::size_t member);
std::int64_t received_bytes(const Exchange& exchange, std::size_t member);

// Cuts `rows` into parts for so many members, as even as whole rows allow.
std::vector<std::int64_t> even_counts(std::int64_t rows, std::int64_t num_members);

// InternalError for an exchange that contradicts itself, such as a count for each of three members
// in a group of two.
void check(const Exchange& exchange, std::int32_t rank);

}  // namespace anabatic::comm
