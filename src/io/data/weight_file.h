// SPDX-License-Identifier: Apache-2.0
// PREFIX.weights next to PREFIX.bin/.idx: what each token weighs as a label. A byte a token, the
// index into a table of at most 256 values. Layout, little-endian: "ANBWGHT1", u64 tokens, u64
// documents, u32 crc32c of PREFIX.idx, u32 size of the table, 256 f32 of it, then the bytes. With
// "ANBPAIR1" documents 2i and 2i + 1 are the chosen and the rejected completion of pair i.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "io/data/indexed_file.h"
#include "io/file.h"

namespace anabatic::io {

inline constexpr std::size_t kMostWeights = 256;

// PREFIX.weights of the pair, whether it is there or not.
std::filesystem::path weights_path(const IndexedPaths& pair);

// A file mapped for reading. Const members are thread-safe.
class WeightFile {
 public:
  // InvalidArgument for a file that is damaged, that was made for another index, or that has a
  // weight which is negative or not finite.
  explicit WeightFile(const IndexedPaths& pair);

  std::int64_t num_tokens() const { return std::ssize(indices_); }
  bool is_of_pairs() const { return is_of_pairs_; }
  // The weights of tokens [begin, begin + weights.size()).
  void read(std::int64_t begin, std::span<float> weights) const;
  // Tokens [begin, end) whose weight is not 0.
  std::int64_t num_trained(std::int64_t begin, std::int64_t end) const;

 private:
  MappedFile file_;
  std::array<float, kMostWeights> table_{};
  std::span<const std::uint8_t> indices_;
  bool is_of_pairs_ = false;
};

// Appears under its name in finish(), after the pair that it belongs to.
class WeightFileWriter {
 public:
  WeightFileWriter(const IndexedPaths& pair, bool is_durable, bool is_of_pairs = false);
  ~WeightFileWriter();  // removes what finish() has not completed
  WeightFileWriter(const WeightFileWriter&) = delete;
  WeightFileWriter& operator=(const WeightFileWriter&) = delete;

  // Values get their place in the table in the order in which they come. InvalidArgument for a
  // value that finds no place.
  void append(std::span<const float> weights);
  void finish(std::int64_t num_documents);

 private:
  std::uint8_t index_of(float weight);
  std::filesystem::path partial() const;

  IndexedPaths pair_;
  bool is_durable_, is_of_pairs_;
  File file_;
  std::vector<float> table_;
  std::map<float, std::uint8_t> places_;
  std::vector<std::byte> buffer_;
  std::int64_t num_tokens_ = 0;
  bool finished_ = false;
};

}  // namespace anabatic::io
