// SPDX-License-Identifier: Apache-2.0
// Safetensors of any dtype, and random weights in F8_E4M3 and MXFP4 with the values they stand for.
#pragma once
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/philox.h"
#include "model/weights.h"
#include "unit/io/test_files.h"

namespace anabatic::model {

struct RawTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

inline void write_raw(const std::filesystem::path& file,
                      const std::map<std::string, RawTensor>& tensors) {
  Json header = Json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = dump_json(header);
  const std::uint64_t length = text.size();
  std::string begin(8, '\0');
  std::memcpy(begin.data(), &length, 8);
  io::write_text(file, begin + text + data);
}

inline std::string bytes_of_floats(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

inline RawTensor raw_floats(const FileTensor& tensor, const StateReader& read) {
  RawTensor raw{"F32", tensor.shape, ""};
  read_in_file_order(tensor, read,
                     [&](std::span<const float> values) { raw.bytes += bytes_of_floats(values); });
  return raw;
}

struct RandomBlocks {
  RawTensor elements, scales;
  std::vector<float> values;
};

inline std::int64_t product_of(const std::vector<std::int64_t>& shape) {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

// A matrix. Bits are sign, 4 of exponent, 3 of mantissa.
inline RandomBlocks random_fp8(const std::vector<std::int64_t>& shape, const std::string& name) {
  const std::int64_t rows = shape.at(0), columns = shape.at(1), squares = (columns + 127) / 128;
  std::vector<float> scales(static_cast<std::size_t>((rows + 127) / 128 * squares));
  for (std::size_t i = 0; i < scales.size(); ++i)
    scales[i] = static_cast<float>(0.01 + 0.01 * random_uniform(1, stream_of(name), i));
  RandomBlocks result{
      {"F8_E4M3", shape, ""}, {"F32", {(rows + 127) / 128, squares}, bytes_of_floats(scales)}, {}};
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column) {
      const auto at = static_cast<std::uint64_t>(row * columns + column);
      // Below the largest exponent, so that no element is NaN.
      const auto bits = static_cast<int>(random_below(2, stream_of(name), at, 240) % 120 +
                                         random_below(3, stream_of(name), at, 2) * 128);
      const int exponent = bits >> 3 & 15, mantissa = bits & 7;
      const float magnitude = exponent == 0
                                  ? std::ldexp(static_cast<float>(mantissa), -9)
                                  : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
      result.elements.bytes += static_cast<char>(bits);
      result.values.push_back((bits >= 128 ? -magnitude : magnitude) *
                              scales[static_cast<std::size_t>(row / 128 * squares + column / 128)]);
    }
  return result;
}

// [.., columns] in groups of 32, the first of a pair in the lower half of its byte.
inline RandomBlocks random_mxfp4(std::vector<std::int64_t> shape, const std::string& name) {
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  RandomBlocks result{{"U8", {}, ""}, {"U8", {}, ""}, {}};
  const std::int64_t count = product_of(shape);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    const auto code = static_cast<int>(random_below(4, stream_of(name), at, 16));
    const auto scale = static_cast<int>(118 + random_below(5, stream_of(name), at / 32, 6));
    if (i % 32 == 0) result.scales.bytes += static_cast<char>(scale);
    if (i % 2 == 0)
      result.elements.bytes += static_cast<char>(code);
    else
      result.elements.bytes.back() =
          static_cast<char>(result.elements.bytes.back() | static_cast<char>(code << 4));
    const float magnitude = std::ldexp(kMagnitudes[code & 7], scale - 127);
    result.values.push_back(code >= 8 ? -magnitude : magnitude);
  }
  shape.back() /= 32;
  result.scales.shape = shape;
  shape.push_back(16);
  result.elements.shape = shape;
  return result;
}

}  // namespace anabatic::model
