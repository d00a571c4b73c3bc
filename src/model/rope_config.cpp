// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/json.h"
#include "model/family.h"

namespace anabatic::model {
namespace {

constexpr double kLargestFactor = 1e30;

// The factor extends a context, so below 1 it has no meaning; transformers only warns.
void read_factor(ConfigReader& reader, spec::Rope& rope, bool is_required) {
  const auto factor = reader.optional_number("factor", 1.0, kLargestFactor);
  if (factor) rope.factor = *factor;
  if (!factor && is_required && !reader.has("factor"))
    reader.invalid("factor",
                   fmt::format("expected a number for rope type {}, got none", rope.variant));
}

void read_llama3(ConfigReader& reader, spec::Rope& rope) {
  const auto low = reader.optional_number("low_freq_factor", 1e-30, kLargestFactor);
  const auto high = reader.optional_number("high_freq_factor", 1e-30, kLargestFactor);
  if (!reader.has("low_freq_factor"))
    reader.invalid("low_freq_factor", "expected a number, got none");
  if (!reader.has("high_freq_factor"))
    reader.invalid("high_freq_factor", "expected a number, got none");
  if (!low || !high) return;
  rope.low_freq_factor = *low;
  rope.high_freq_factor = *high;
  if (*high <= *low)
    reader.invalid("high_freq_factor",
                   fmt::format("expected more than low_freq_factor {}, got {}", *low, *high));
}

// As in transformers, 0 and null both mean the default.
void read_yarn(ConfigReader& reader, spec::Rope& rope) {
  rope.attention_factor =
      reader.optional_number("attention_factor", 0.0, kLargestFactor).value_or(-1.0);
  const auto truthy = [&](const char* key, double fallback) {
    const double value = reader.optional_number(key, 0.0, kLargestFactor).value_or(0.0);
    return value == 0.0 ? fallback : value;
  };
  rope.beta_fast = truthy("beta_fast", 32.0);
  rope.beta_slow = truthy("beta_slow", 1.0);
  rope.mscale = truthy("mscale", 0.0);
  rope.truncate = reader.boolean("truncate", true);
  if (rope.beta_fast < rope.beta_slow)
    reader.invalid("beta_fast", fmt::format("expected at least beta_slow {}, got {}",
                                            rope.beta_slow, rope.beta_fast));
}

void read_variant(ConfigReader& reader, spec::Rope& rope,
                  std::optional<std::int64_t> outer_original) {
  const std::string& variant = rope.variant;
  if (variant == "default") return;
  // Latent attention scales by it under every variant.
  rope.mscale_all_dim = reader.optional_number("mscale_all_dim", 0.0, kLargestFactor).value_or(0.0);
  if (variant == "linear" || variant == "dynamic") return read_factor(reader, rope, true);
  const auto own = reader.optional_integer("original_max_position_embeddings", std::nullopt,
                                           {1, Limits::kPositions});
  rope.original_max_position = outer_original.value_or(own.value_or(rope.max_position));
  if (variant == "llama3") {
    read_factor(reader, rope, true);
    return read_llama3(reader, rope);
  }
  read_factor(reader, rope, false);
  if (!reader.has("factor"))
    rope.factor =
        static_cast<double>(rope.max_position) / static_cast<double>(rope.original_max_position);
  read_yarn(reader, rope);
}

// With an alpha other than 0, `dynamic` is a larger base, whatever the length of a text. Other
// types ignore it.
void read_alpha(ConfigReader& reader, spec::Rope& rope) {
  const double alpha = reader.optional_number("alpha", 0.0, kLargestFactor).value_or(0.0);
  if (rope.variant != "dynamic" || alpha == 0) return;
  const auto dim = static_cast<double>(rope.rotary_dim);
  if (rope.rotary_dim > 2) rope.theta *= std::pow(alpha, dim / (dim - 2));
  rope.variant = "default";
}

// The share of a head that rotates, `part` where the field is absent. A family whose default is 0
// rotates whole heads only.
double read_rotated_part(ConfigReader& reader, const FamilyDefaults& defaults, double part) {
  const auto read = reader.optional_number("partial_rotary_factor", 0.0, 1.0);
  if (defaults.partial_rotary_factor > 0) return read.value_or(part);
  if (read.value_or(1.0) != 1.0)
    reader.unsupported("partial_rotary_factor", fmt::format("expected 1, got {}", *read));
  return 1.0;
}

// As transformers, which rounds down.
std::int64_t rotated_columns(ConfigReader& reader, std::int64_t head_dim, double part) {
  const auto columns = static_cast<std::int64_t>(static_cast<double>(head_dim) * part);
  if (columns >= 2 && columns % 2 == 0) return columns;
  reader.invalid(
      "partial_rotary_factor",
      fmt::format("expected an even part of head_dim {}, got {} columns", head_dim, columns));
  return head_dim;
}

// The object that describes the rope. As in transformers, rope_scaling, the older name, comes
// first.
std::optional<JsonNode> rope_object(ConfigReader& reader) {
  std::optional<JsonNode> chosen;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const std::optional<JsonNode> node = reader.object(key);
    if (node && !node->value().empty() && !chosen) chosen = node;
  }
  return chosen;
}

}  // namespace

spec::Rope read_rope(ConfigReader& reader, const CommonFields& fields,
                     const FamilyDefaults& defaults) {
  spec::Rope rope{.max_position = fields.max_position_embeddings};
  constexpr double kSmallest = std::numeric_limits<double>::min();
  rope.theta = reader.number("rope_theta", defaults.rope_theta, kSmallest, kLargestFactor);
  const double part = read_rotated_part(reader, defaults, defaults.partial_rotary_factor);
  const auto outer_original = reader.optional_integer("original_max_position_embeddings",
                                                      std::nullopt, {1, Limits::kPositions});
  const std::optional<JsonNode> object = rope_object(reader);
  if (!object) {
    rope.rotary_dim = rotated_columns(reader, fields.head_dim, part);
    return rope;
  }

  ConfigReader nested(*object);
  rope.theta = nested.optional_number("rope_theta", kSmallest, kLargestFactor).value_or(rope.theta);
  rope.rotary_dim =
      rotated_columns(nested, fields.head_dim, read_rotated_part(nested, defaults, part));
  const std::string old_name = nested.string("type", "default");
  rope.variant = nested.string("rope_type", old_name);
  static const std::vector<std::string> known{"default", "linear", "dynamic", "yarn", "llama3"};
  if (std::find(known.begin(), known.end(), rope.variant) == known.end()) {
    nested.unsupported(
        "rope_type",
        fmt::format("expected default, linear, dynamic, yarn or llama3, got '{}'", rope.variant));
  } else {
    read_variant(nested, rope, outer_original);
    // transformers keeps parameters of other variants, so these are allowed.
    nested.know({"factor", "original_max_position_embeddings", "low_freq_factor",
                 "high_freq_factor", "attention_factor", "beta_fast", "beta_slow", "mscale",
                 "mscale_all_dim", "truncate", "finetuned"});
    if (defaults.has_rope_alpha) nested.know({"alpha"});
    for (const std::string& name : nested.unknown_keys())
      reader.unsupported(name, fmt::format("is not a parameter of rope type {}", rope.variant));
  }
  if (rope.variant == "dynamic" && rope.rotary_dim <= 2)
    nested.invalid("rope_type", "dynamic expects head_dim above 2");
  if (defaults.has_rope_alpha) read_alpha(nested, rope);
  if (rope.variant == "yarn" && rope.theta == 1.0)
    nested.invalid("rope_theta", "yarn expects a base other than 1");
  reader.absorb(nested);
  return rope;
}

}  // namespace anabatic::model
