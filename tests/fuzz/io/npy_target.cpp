// SPDX-License-Identifier: Apache-2.0
// An array of bool that is read has the values of its shape, and is written and read again as it
// was.
#include <algorithm>

#include "fuzz/fuzz_target.h"
#include "io/npy.h"

using namespace anabatic;

namespace {

void check(const io::BoolArray& array) {
  std::int64_t count = 1;
  for (const std::int64_t size : array.shape) count *= size;
  fuzz::require(count == std::ssize(array.values), "as many values as the shape has");
  fuzz::require(std::ranges::all_of(array.values, [](auto value) { return value <= 1; }),
                "values of 0 and 1");
  const io::BoolArray again = io::parse_npy_bool(io::to_npy(array), "again.npy");
  fuzz::require(again.shape == array.shape && again.values == array.values,
                "what was written, read again");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view file = fuzz::view(data, size);
  return fuzz::read_or_refuse(
      file, [&] { return io::parse_npy_bool(file, "[attention] a.npy"); },
      [&](const io::BoolArray& array) { check(array); });
}
