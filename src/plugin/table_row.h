// SPDX-License-Identifier: Apache-2.0
// Rows of the arrays that a plugin gives: structs that begin with their size, all of one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace anabatic::plugin {

// What messages call the rows of an array.
struct TableWords {
  std::string_view place{};  // "[plugin] my_ops.so"
  std::string_view rows{};   // "ops"
  std::string_view type{};   // "anabatic_op"
  std::string_view count{};  // what says how many there are: "the count"
};

// Row i of `count`. InvalidArgument where its size cannot be right.
template <class Row>
const Row* table_row(const Row* rows, std::int32_t i, std::int32_t count, const TableWords& words) {
  const auto* row =
      reinterpret_cast<const Row*>(reinterpret_cast<const std::byte*>(rows) +
                                   std::size_t{rows->size} * static_cast<std::size_t>(i));
  const bool is_first = i == 0;
  ANABATIC_REQUIRE(is_first ? row->size >= sizeof(Row) : row->size == rows->size,
                   "{}: {}[{}] has the size {}, expected {}{}: is `.size = sizeof({})` missing, or "
                   "{} {} too large?",
                   words.place, words.rows, i, row->size, is_first ? "at least " : "",
                   is_first ? sizeof(Row) : rows->size, words.type, words.count, count);
  return row;
}

}  // namespace anabatic::plugin
