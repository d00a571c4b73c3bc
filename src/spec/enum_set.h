// SPDX-License-Identifier: Apache-2.0
// A set of enumerators, as bits.
#pragma once
#include <cstdint>
#include <initializer_list>

namespace anabatic::spec {

// The enumeration has at most 8 enumerators, which count from 0.
template <class Enum>
class EnumSet {
 public:
  constexpr EnumSet() = default;
  constexpr EnumSet(std::initializer_list<Enum> elements) {
    for (const Enum element : elements) bits_ |= bit(element);
  }
  constexpr bool contains(Enum element) const { return (bits_ & bit(element)) != 0; }
  constexpr bool is_empty() const { return bits_ == 0; }
  friend constexpr EnumSet operator&(EnumSet a, EnumSet b) { return EnumSet(a.bits_ & b.bits_); }
  friend constexpr EnumSet operator|(EnumSet a, EnumSet b) { return EnumSet(a.bits_ | b.bits_); }
  friend constexpr EnumSet operator-(EnumSet a, EnumSet b) { return EnumSet(a.bits_ & ~b.bits_); }
  bool operator==(const EnumSet&) const = default;

 private:
  constexpr explicit EnumSet(int bits) : bits_(static_cast<std::uint8_t>(bits)) {}
  static constexpr std::uint8_t bit(Enum element) {
    return static_cast<std::uint8_t>(1u << static_cast<unsigned>(element));
  }
  std::uint8_t bits_ = 0;
};

}  // namespace anabatic::spec
