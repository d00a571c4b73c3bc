// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli, RFC 3720), and the masked form that TFRecord framing uses.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace anabatic::io {

std::uint32_t crc32c(std::span<const std::byte> bytes);
// Rotated and offset, so that a CRC stored next to its data does not disturb a CRC of both.
std::uint32_t masked_crc32c(std::span<const std::byte> bytes);

}  // namespace anabatic::io
