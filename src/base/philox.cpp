// SPDX-License-Identifier: Apache-2.0
#include "base/philox.h"

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace anabatic {
namespace {

__extension__ using UInt128 = unsigned __int128;

PhiloxCounter draw(std::uint64_t seed, std::uint64_t stream, std::uint64_t element) {
  return philox({static_cast<std::uint32_t>(element), static_cast<std::uint32_t>(element >> 32),
                 static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

double to_unit(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(high) << 32 | low) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace

PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t element) {
  const PhiloxCounter bits = draw(seed, stream, element);
  return static_cast<std::uint64_t>(bits[1]) << 32 | bits[0];
}

double random_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t element) {
  const PhiloxCounter bits = draw(seed, stream, element);
  return to_unit(bits[0], bits[1]);
}

double random_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t element) {
  const PhiloxCounter bits = draw(seed, stream, element);
  const double radius =
      std::sqrt(-2.0 * std::log(1.0 - to_unit(bits[0], bits[1])));  // Box and Muller, 1958
  return radius * std::cos(2.0 * std::numbers::pi * to_unit(bits[2], bits[3]));
}

std::uint64_t random_below(std::uint64_t seed, std::uint64_t stream, std::uint64_t element,
                           std::uint64_t bound) {
  ANABATIC_CHECK(bound > 0, "[random_below] bound must be positive");
  return static_cast<std::uint64_t>(
      static_cast<UInt128>(random_bits(seed, stream, element)) * bound >> 64);
}

std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

}  // namespace anabatic
