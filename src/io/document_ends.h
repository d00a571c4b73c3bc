// SPDX-License-Identifier: Apache-2.0
// The special tokens around a document, added once.
#pragma once
#include <cstdint>
#include <vector>

namespace anabatic::io {

// Whether a document gets its BOS or EOS: as the model's files say, never, or always.
enum class AddToken : std::uint8_t { kAuto, kNever, kAlways };

struct DocumentEnds {
  std::vector<std::int32_t> prefix{};  // mostly BOS or nothing
  std::vector<std::int32_t> suffix{};  // mostly EOS or nothing

  // Inserts the prefix before ids[first...], without the part that they begin with already. Returns
  // the number of inserted tokens.
  std::size_t put_before(std::vector<std::int32_t>& ids, std::size_t first) const;

  // Appends the suffix to ids[first...], without the part that they end with already.
  void put_behind(std::vector<std::int32_t>& ids, std::size_t first) const;
};

}  // namespace anabatic::io
