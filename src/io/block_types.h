// SPDX-License-Identifier: Apache-2.0
// How tensors of weight files are stored in blocks with scales, and their values in f32. Each type
// gives the bits that the Python package gguf gives.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace anabatic::io {

// A type of GGUF tensors. A tensor is a sequence of blocks, and no block crosses the end of a row.
struct BlockType {
  std::string_view name;             // "Q4_K"
  std::uint32_t id = 0;              // in files
  std::int64_t elements = 1, bytes;  // of a block
  // Whole blocks to values and back; null where the type is known and not supported. Blocks may lie
  // at any alignment. A value that is not finite gives a block of unspecified elements.
  void (*dequantise)(const std::byte* blocks, std::int64_t num_blocks, float* values) = nullptr;
  void (*quantise)(const float* values, std::int64_t num_blocks, std::byte* blocks) = nullptr;
};

std::span<const BlockType> block_types();  // all that the format names, by id
// Null when there is no such type.
const BlockType* find_block_type(std::uint32_t id);
const BlockType* find_block_type(std::string_view name);

// Whole blocks; the sizes must agree.
void dequantise(const BlockType& type, std::span<const std::byte> blocks, std::span<float> values);
void quantise(const BlockType& type, std::span<const float> values, std::span<std::byte> blocks);

// Hugging Face's MXFP4: 16 bytes a group of 32 values, the first of a pair in the lower half of its
// byte, times 2^(scale - 127). `scales` has a byte for each group. Scales and elements are those of
// the GGUF type; an element may be -0 here.
void dequantise_mxfp4_pairs(std::span<const std::byte> blocks, std::span<const std::byte> scales,
                            std::span<float> values);
void quantise_mxfp4_pairs(std::span<const float> values, std::span<std::byte> blocks,
                          std::span<std::byte> scales);

// A float8 of 4 exponent and 3 mantissa bits, without infinities (F8_E4M3).
float f8_e4m3_to_float(std::uint8_t bits);
// Rows [first_row, ...) of a row-major F8_E4M3 matrix. `scales` is that of the whole matrix, one
// for each block of 128 x 128 elements, the last blocks being smaller.
void dequantise_f8_e4m3(std::span<const std::byte> elements, std::int64_t columns,
                        std::int64_t first_row, std::span<const float> scales,
                        std::span<float> values);

}  // namespace anabatic::io
