// SPDX-License-Identifier: Apache-2.0
// The tensors of a safetensors file that is read lie in the file, next to each other.
#include <algorithm>

#include "fuzz/fuzz_target.h"
#include "io/safetensors.h"

using namespace anabatic;

namespace {

void check(std::vector<io::TensorEntry>& entries, std::string_view file) {
  std::ranges::sort(entries, {}, [](const io::TensorEntry& entry) {
    return std::pair(entry.data.data(), entry.data.size());
  });
  const auto* end = reinterpret_cast<const std::byte*>(file.data() + file.size());
  const std::byte* expected = entries.empty() ? end : entries.front().data.data();
  for (const io::TensorEntry& entry : entries) {
    fuzz::require(entry.data.data() == expected, "tensors next to each other");
    expected += entry.data.size();
    if (entry.dtype)
      fuzz::require(entry.num_elements() * size_bytes(*entry.dtype) ==
                        static_cast<std::int64_t>(entry.data.size()),
                    "bytes of the shape and dtype");
  }
  fuzz::require(expected == end, "the last tensor ends with the file");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view file = fuzz::view(data, size);
  return fuzz::read_or_refuse(
      file, [&] { return io::parse_safetensors(std::as_bytes(std::span(file)), "a.safetensors"); },
      [&](std::vector<io::TensorEntry>& entries) { check(entries, file); });
}
