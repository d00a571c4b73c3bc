// SPDX-License-Identifier: Apache-2.0
// The special tokens that stand around a document, put there once.
#pragma once
#include <cstdint>
#include <vector>

namespace anabatic::io {

// Does a document get its BOS or EOS: as the model's files say, never, or always?
enum class AddToken : std::uint8_t { kAuto, kNever, kAlways };

struct DocumentEnds {
  std::vector<std::int32_t> prefix{};  // mostly BOS or nothing
  std::vector<std::int32_t> suffix{};  // mostly EOS or nothing

  // Puts the prefix in front of ids[first...], or what these do not begin with already. Returns how
  // many tokens that were.
  std::size_t put_before(std::vector<std::int32_t>& ids, std::size_t first) const;

  // Puts the suffix behind ids[first...], or what these do not end with already.
  void put_behind(std::vector<std::int32_t>& ids, std::size_t first) const;
};

}  // namespace anabatic::io
