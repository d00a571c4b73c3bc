// SPDX-License-Identifier: Apache-2.0
// Lets a kernel sum the bytes of states that it changes while it has them in registers. The code
// that moves states to a disk and back would otherwise read them once more for its checksums.
#pragma once
#include <cstddef>
#include <cstdint>

namespace anabatic::kernels {

inline constexpr std::int64_t kWordBytes = 8;
// Odd, from the digits of the golden ratio.
inline constexpr std::uint64_t kWordKey = 0x9E3779B97F4A7C15u;

// The contribution of word `index` of a tensor's bytes to their sum modulo 2^64. Swapped, lost or
// flipped words change the sum except in one case of about 2^64. It is a product of the hash NH
// (Black et al., UMAC, 1999), keyed by the index, plus the word itself. Sums of parts add up.
inline std::uint64_t word_sum(std::uint64_t word, std::int64_t index) {
  const std::uint64_t mixed = word ^ (static_cast<std::uint64_t>(index) + 1) * kWordKey;
  return (mixed & 0xFFFFFFFFu) * (mixed >> 32) + word;
}

// Gets reports of the bytes of outputs that a kernel changes in place, each whole word once. Parts
// come from any thread, each in one of the two ways. Bytes of the output count from `first`, which
// begins a word.
class ByteWatch {
 public:
  // A part that is reported with its sums is between two multiples of these bytes.
  static constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

  virtual ~ByteWatch() = default;
  // Called before a part's first read, and after its last write.
  virtual void before(std::size_t output, std::int64_t first, std::int64_t bytes) = 0;
  virtual void after(std::size_t output, std::int64_t first, std::int64_t bytes) = 0;
  // The sums of a part's words as they were read and as they were written.
  virtual void summed(std::size_t output, std::int64_t first, std::int64_t bytes,
                      std::uint64_t read, std::uint64_t written) = 0;
};

}  // namespace anabatic::kernels
