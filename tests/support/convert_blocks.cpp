// SPDX-License-Identifier: Apache-2.0
// Blocks of a weight file's types to f32 and back, and GGUF files, for parity_block_types.py
// and parity_gguf.py. Blocks and values are files of raw bytes.
//   convert_blocks dequantise TYPE BLOCKS VALUES
//   convert_blocks quantise TYPE VALUES BLOCKS
//   convert_blocks mxfp4_pairs BLOCKS SCALES VALUES
//   convert_blocks f8_e4m3 COLUMNS ELEMENTS SCALES VALUES
//   convert_blocks copy GGUF GGUF: all keys and tensors of one, written as another
//   convert_blocks speed TYPE...: GB/s of one thread, of values and of blocks that fit no cache
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "anabatic/error.h"
#include "base/error.h"
#include "base/text.h"
#include "io/block_types.h"
#include "io/gguf.h"
#include "io/gguf_writer.h"

namespace {

using namespace anabatic;
using Arguments = std::vector<std::string>;

std::vector<std::byte> bytes_of(const std::string& file) {
  const std::string content = read_file(file);
  const auto* bytes = reinterpret_cast<const std::byte*>(content.data());
  return {bytes, bytes + content.size()};
}

std::vector<float> floats_of(const std::string& file) {
  const std::vector<std::byte> bytes = bytes_of(file);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

template <class T>
void save(const std::string& file, const std::vector<T>& values) {
  write_file_atomically(file,
                        {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

const io::BlockType& type_of(const std::string& name) {
  const io::BlockType* type = io::find_block_type(name);
  ANABATIC_REQUIRE(type != nullptr, "[convert_blocks] unknown type {}", name);
  return *type;
}

void dequantise(const Arguments& arguments) {
  const io::BlockType& type = type_of(arguments.at(1));
  const std::vector<std::byte> blocks = bytes_of(arguments.at(2));
  std::vector<float> values(blocks.size() / static_cast<std::size_t>(type.bytes) *
                            static_cast<std::size_t>(type.elements));
  io::dequantise(type, blocks, values);
  save(arguments.at(3), values);
}

void quantise(const Arguments& arguments) {
  const io::BlockType& type = type_of(arguments.at(1));
  const std::vector<float> values = floats_of(arguments.at(2));
  std::vector<std::byte> blocks(values.size() / static_cast<std::size_t>(type.elements) *
                                static_cast<std::size_t>(type.bytes));
  io::quantise(type, values, blocks);
  save(arguments.at(3), blocks);
}

void mxfp4_pairs(const Arguments& arguments) {
  const std::vector<std::byte> blocks = bytes_of(arguments.at(1)),
                               scales = bytes_of(arguments.at(2));
  std::vector<float> values(2 * blocks.size());
  io::dequantise_mxfp4_pairs(blocks, scales, values);
  save(arguments.at(3), values);
}

void f8_e4m3(const Arguments& arguments) {
  const std::vector<std::byte> elements = bytes_of(arguments.at(2));
  std::vector<float> values(elements.size());
  io::dequantise_f8_e4m3(elements, std::stoll(arguments.at(1)), 0, floats_of(arguments.at(3)),
                         values);
  save(arguments.at(4), values);
}

void copy(const Arguments& arguments) {
  const io::GgufFiles files = io::GgufFiles::open(arguments.at(1));
  io::GgufKeys keys;
  for (const auto& [key, value] : files.metadata().entries())
    if (key != "general.alignment" && !key.starts_with("split.")) keys.add(key, value);
  std::vector<io::GgufTensorInfo> infos;
  for (const auto& [name, tensor] : files.tensors())
    infos.push_back({name, tensor.type, tensor.shape});
  io::GgufWriter writer(arguments.at(2), std::move(keys), std::move(infos),
                        files.metadata().integer("general.alignment").value_or(32));
  for (const auto& [name, tensor] : files.tensors()) writer.write(name, tensor.data);
  writer.finish();
}

// The shortest of some runs, in seconds.
template <class Run>
double seconds_of(Run&& run) {
  double best = 1e9;
  for (int i = 0; i < 7; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

void speed(const Arguments& arguments) {
  constexpr std::size_t kValues = std::size_t{1} << 25;
  std::vector<float> values(kValues);
  for (std::size_t i = 0; i < kValues; ++i)
    values[i] = static_cast<float>(static_cast<std::int32_t>(i * 2654435761u)) * 0x1p-31f;
  for (std::size_t argument = 1; argument < arguments.size(); ++argument) {
    const io::BlockType& type = type_of(arguments[argument]);
    std::vector<std::byte> blocks(kValues / static_cast<std::size_t>(type.elements) *
                                  static_cast<std::size_t>(type.bytes));
    const auto print = [&](const char* what, double seconds) {
      fmt::print("{} {}: {:.2f} GB/s of f32, {:.2f} GB/s of blocks\n", type.name, what,
                 4e-9 * static_cast<double>(kValues) / seconds,
                 1e-9 * static_cast<double>(blocks.size()) / seconds);
    };
    if (type.quantise != nullptr)
      print("quantise", seconds_of([&] { io::quantise(type, values, blocks); }));
    if (type.dequantise != nullptr)
      print("dequantise", seconds_of([&] { io::dequantise(type, blocks, values); }));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments(argv + 1, argv + argc);
  try {
    const std::string verb = arguments.at(0);
    if (verb == "dequantise") dequantise(arguments);
    if (verb == "quantise") quantise(arguments);
    if (verb == "mxfp4_pairs") mxfp4_pairs(arguments);
    if (verb == "f8_e4m3") f8_e4m3(arguments);
    if (verb == "copy") copy(arguments);
    if (verb == "speed") speed(arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
