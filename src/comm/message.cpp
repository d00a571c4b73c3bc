// SPDX-License-Identifier: Apache-2.0
#include "comm/message.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace anabatic::comm {

std::string to_string(const Header& header) {
  return fmt::format("exchange {} of step {} ({}, {} bytes, plan {:016x})", header.number,
                     header.step, to_string(header.kind), header.bytes, header.plan);
}

void refuse(const Header& sent, const Incoming& expected, std::int32_t rank) {
  throw CommError(fmt::format("rank {} is at {}, rank {} at {}", expected.peer, to_string(sent),
                              rank, to_string(expected.header)));
}

void copy_from(const Block& block, std::int64_t offset, std::int64_t bytes, std::byte* to) {
  if (block.row_index == nullptr) {
    std::memcpy(to, block.data + offset, static_cast<std::size_t>(bytes));
    return;
  }
  for (const std::int64_t end = offset + bytes; offset < end;) {
    const std::int64_t row = offset / block.row_bytes, column = offset % block.row_bytes;
    const std::int64_t count = std::min(block.row_bytes - column, end - offset);
    const std::int64_t from = block.row_index[row] / block.index_divisor;
    std::memcpy(to, block.data + from * block.row_bytes + column, static_cast<std::size_t>(count));
    to += count;
    offset += count;
  }
}

}  // namespace anabatic::comm
