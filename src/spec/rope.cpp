// SPDX-License-Identifier: Apache-2.0
#include "spec/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace anabatic::spec {
namespace {

// transformers computes base ** (arange(0, dim, 2) / dim) in fp32; the exponent is an fp32
// quotient.
void fill_default(double theta, std::int64_t dim, std::int64_t first, std::span<float> inverse) {
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    const auto twice = 2 * (static_cast<std::size_t>(first) + i);
    const float exponent = static_cast<float>(twice) / static_cast<float>(dim);
    inverse[i] = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
}

double dynamic_theta(const Rope& rope, std::int64_t length) {
  const double dim = static_cast<double>(rope.rotary_dim);
  const double base_length = static_cast<double>(rope.max_position);
  const double seen = std::max(static_cast<double>(length), base_length);
  const double stretch = rope.factor * seen / base_length - (rope.factor - 1.0);
  return rope.theta * std::pow(stretch, dim / (dim - 2.0));
}

// Llama 3.1: long wavelengths are divided by the factor, short ones kept, those between blended.
void stretch_llama3(const Rope& rope, std::span<float> inverse) {
  const double old_length = static_cast<double>(rope.original_max_position);
  const double low_wavelength = old_length / rope.low_freq_factor;
  const double high_wavelength = old_length / rope.high_freq_factor;
  for (float& value : inverse) {
    const float wavelength = static_cast<float>(2.0 * std::numbers::pi) / value;
    const float divided = value / static_cast<float>(rope.factor);
    if (wavelength > low_wavelength) {
      value = divided;
    } else if (!(wavelength < high_wavelength)) {
      const float smooth =
          (static_cast<float>(old_length) / wavelength - static_cast<float>(rope.low_freq_factor)) /
          static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
      value = (1.0f - smooth) * divided + smooth * value;
    }
  }
}

double yarn_mscale(double scale, double mscale) {
  return scale <= 1.0 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

// YaRN (Peng et al., 2023): interpolate low frequencies, keep high ones, ramp between the two
// rotation counts. Returns the scale.
float stretch_yarn(const Rope& rope, std::int64_t first, std::span<float> inverse) {
  const double dim = static_cast<double>(rope.rotary_dim);
  const double original = static_cast<double>(rope.original_max_position);
  double attention_factor = rope.attention_factor;
  if (attention_factor < 0) {
    attention_factor =
        rope.mscale != 0 && rope.mscale_all_dim != 0
            ? yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim)
            : yarn_mscale(rope.factor, 1.0);
  }
  const auto correction_dim = [&](double rotations) {
    return dim * std::log(original / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
  };
  double low = correction_dim(rope.beta_fast), high = correction_dim(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    const auto place = static_cast<double>(static_cast<std::size_t>(first) + i);
    const double ramp = std::clamp((place - low) / (high - low), 0.0, 1.0);
    const float keep = 1.0f - static_cast<float>(ramp);
    const float extrapolated = inverse[i];
    const float interpolated = extrapolated / static_cast<float>(rope.factor);
    inverse[i] = interpolated * (1.0f - keep) + extrapolated * keep;
  }
  return static_cast<float>(attention_factor);
}

// One list of fields serves both directions.
template <class RopeType, class Visit>
void visit_fields(RopeType& rope, Visit&& visit) {
  visit("rope_variant", rope.variant);
  visit("rotary_dim", rope.rotary_dim);
  visit("theta", rope.theta);
  visit("factor", rope.factor);
  visit("max_position", rope.max_position);
  visit("original_max_position", rope.original_max_position);
  visit("attention_factor", rope.attention_factor);
  visit("beta_fast", rope.beta_fast);
  visit("beta_slow", rope.beta_slow);
  visit("mscale", rope.mscale);
  visit("mscale_all_dim", rope.mscale_all_dim);
  visit("low_freq_factor", rope.low_freq_factor);
  visit("high_freq_factor", rope.high_freq_factor);
  visit("truncate", rope.truncate);
}

}  // namespace

Attributes to_attributes(const Rope& rope) {
  Attributes attributes;
  visit_fields(rope, [&](const char* key, const auto& value) { attributes[key] = value; });
  return attributes;
}

Rope rope_from_attributes(const Attributes& attributes) {
  Rope rope;
  visit_fields(rope, [&]<class T>(const char* key, T& value) {
    const auto found = attributes.find(key);
    ANABATIC_REQUIRE(found != attributes.end(), "[rope] expected attribute '{}', got none", key);
    const T* typed = std::get_if<T>(&found->second);
    ANABATIC_REQUIRE(typed != nullptr, "[rope] attribute '{}' has the wrong kind: {}", key,
                     to_string(found->second));
    value = *typed;
  });
  return rope;
}

float fill_rope_frequencies(const Rope& rope, std::int64_t length, std::int64_t first,
                            std::span<float> inverse) {
  ANABATIC_REQUIRE(rope.rotary_dim > 0 && rope.rotary_dim % 2 == 0,
                   "[rope] expected an even rotary_dim > 0, got {}", rope.rotary_dim);
  const double theta = rope.variant == "dynamic" ? dynamic_theta(rope, length) : rope.theta;
  fill_default(theta, rope.rotary_dim, first, inverse);
  if (rope.variant == "default" || rope.variant == "dynamic") return 1.0f;
  if (rope.variant == "yarn") return stretch_yarn(rope, first, inverse);
  if (rope.variant == "linear")
    for (float& value : inverse) value /= static_cast<float>(rope.factor);
  else if (rope.variant == "llama3")
    stretch_llama3(rope, inverse);
  else
    throw InvalidArgument(fmt::format(
        "[rope] expected default, linear, dynamic, yarn or llama3, got '{}'", rope.variant));
  return 1.0f;
}

RopeFrequencies rope_frequencies(const Rope& rope, std::int64_t length) {
  RopeFrequencies result;
  result.inverse.resize(static_cast<std::size_t>(std::max<std::int64_t>(rope.rotary_dim, 0) / 2));
  result.scale = fill_rope_frequencies(rope, length, 0, result.inverse);
  return result;
}

}  // namespace anabatic::spec
