// SPDX-License-Identifier: Apache-2.0
// How a kernel sums the bytes of states that it changes, on their way through its registers, for
// whoever moves them to a disk and back and would read them once more for that.
#pragma once
#include <cstddef>
#include <cstdint>

namespace anabatic::kernels {

inline constexpr std::int64_t kWordBytes = 8;
// Odd, from the digits of the golden ratio.
inline constexpr std::uint64_t kWordKey = 0x9E3779B97F4A7C15u;

// What word `index` of a tensor's bytes adds to their sum modulo 2^64, in which words at other
// places, lost ones and flipped bits show but for one case in about 2^64: a product of the hash NH
// (Black et al., UMAC, 1999), keyed by the place, and the word itself. Sums of parts add up.
inline std::uint64_t word_sum(std::uint64_t word, std::int64_t index) {
  const std::uint64_t mixed = word ^ (static_cast<std::uint64_t>(index) + 1) * kWordKey;
  return (mixed & 0xFFFFFFFFu) * (mixed >> 32) + word;
}

// Told of the bytes of outputs that a kernel changes in place, every whole word once: in parts, by
// any thread, each part in one of the two ways. Bytes are those of the output from `first` on,
// which begins a word.
class ByteWatch {
 public:
  // A part that is told of with its sums lies between two multiples of these bytes.
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
