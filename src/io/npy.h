// SPDX-License-Identifier: Apache-2.0
// Arrays of bool in NumPy's .npy files, versions 1 to 3, in row-major order (NEP 1).
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::io {

struct BoolArray {
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> values;  // 0 or 1, row-major
};

// The contents of a file. InvalidArgument, which begins with `place`, names what it has in place of
// an array of bool: another dtype or order, a damaged header, too few or too many bytes.
BoolArray parse_npy_bool(std::string_view bytes, std::string_view place);
BoolArray read_npy_bool(const std::filesystem::path& path);

// The contents of a file with this array.
std::string to_npy(const BoolArray& array);

// "[1, 4, 4]".
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace anabatic::io
