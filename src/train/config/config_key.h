// SPDX-License-Identifier: Apache-2.0
// Makers of the rows of the table of keys: each ties one field of RunConfig, reached through `at`,
// to its text, and says its type and what it allows. For run_config.cpp and parallel_keys.cpp
// alone.
#pragma once
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "train/run_config.h"

namespace anabatic::train {

using Values = std::span<const std::string>;

// A field of RunConfig, for the makers below.
#define AT(field) \
  [](RunConfig & config) -> auto& { return config.field; }

const std::string& only(Values values);  // InvalidArgument unless there is one
std::string yaml_quoted(const std::string& text);
std::string show_double(double value);
std::string joined(const std::vector<std::string>& words, const char* separator);

template <class T>
T parse_number(const std::string& text, const char* kind) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  ANABATIC_REQUIRE(error == std::errc{} && stop == end && !text.empty(), "expected {}, got '{}'",
                   kind, text);
  return value;
}

template <class T, class Show>
std::string show_list(const std::vector<T>& list, Show&& show) {
  std::string out = "[";
  for (std::size_t i = 0; i < list.size(); ++i) out += (i > 0 ? ", " : "") + show(list[i]);
  return out + "]";
}

// The bounds of a number in help and messages; a bound beyond use is left out.
std::string bounds_of(double lowest, double highest);
std::string bounds_of(std::int64_t lowest, std::int64_t highest);

inline constexpr std::int64_t kNoBound = std::numeric_limits<std::int64_t>::max();

template <class At>
ConfigKey integer(std::string name, std::string help, std::int64_t lowest, At at,
                  std::int64_t highest = kNoBound) {
  return {.name = std::move(name),
          .help = std::move(help),
          .set =
              [=](RunConfig& config, Values values) {
                const auto value = parse_number<std::int64_t>(only(values), "an integer");
                ANABATIC_REQUIRE(value >= lowest && value <= highest,
                                 "expected an integer {}, got {}", bounds_of(lowest, highest),
                                 value);
                at(config) = value;
              },
          .show =
              [=](const RunConfig& config) {
                return std::to_string(at(const_cast<RunConfig&>(config)));
              },
          .type = "integer",
          .allowed = bounds_of(lowest, highest)};
}

template <class At>
ConfigKey number(std::string name, std::string help, double lowest, double highest, At at) {
  return {
      .name = std::move(name),
      .help = std::move(help),
      .set =
          [=](RunConfig& config, Values values) {
            const double value = parse_number<double>(only(values), "a number");
            ANABATIC_REQUIRE(value >= lowest && value <= highest,
                             "expected a number in [{}, {}], got {}", lowest, highest, value);
            at(config) = value;
          },
      .show =
          [=](const RunConfig& config) { return show_double(at(const_cast<RunConfig&>(config))); },
      .type = "number",
      .allowed = bounds_of(lowest, highest)};
}

// A key of `integer` or `number` that also takes `word`, kept in the field as `stands_for`.
template <class T, class At>
ConfigKey or_word(ConfigKey key, std::string word, T stands_for, At at) {
  key.set = [=, set = std::move(key.set)](RunConfig& config, Values values) {
    if (only(values) == word) {
      at(config) = stands_for;
      return;
    }
    try {
      set(config, values);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("{} (or {})", error.what(), word));
    }
  };
  key.show = [=, show = std::move(key.show)](const RunConfig& config) {
    return at(const_cast<RunConfig&>(config)) == stands_for ? word : show(config);
  };
  key.allowed = fmt::format("{} | {}", word, key.allowed);
  return key;
}

template <class At>
ConfigKey boolean(std::string name, std::string help, At at) {
  return {.name = std::move(name),
          .help = std::move(help),
          .set =
              [=](RunConfig& config, Values values) {
                const auto value = parse_boolean(only(values));
                ANABATIC_REQUIRE(value.has_value(), "expected true or false, got '{}'", values[0]);
                at(config) = *value;
              },
          .show =
              [=](const RunConfig& config) {
                return at(const_cast<RunConfig&>(config)) ? "true" : "false";
              },
          .type = "boolean",
          .allowed = "true | false"};
}

// auto, or true and false as booleans are written.
template <class At>
ConfigKey add_token(std::string name, std::string help, At at) {
  using enum io::AddToken;
  return {.name = std::move(name),
          .help = std::move(help),
          .set =
              [=](RunConfig& config, Values values) {
                const std::string& text = only(values);
                const auto value = parse_boolean(text);
                ANABATIC_REQUIRE(value.has_value() || text == "auto",
                                 "expected auto, true or false, got '{}'", text);
                at(config) = !value ? kAuto : *value ? kAlways : kNever;
              },
          .show =
              [=](const RunConfig& config) {
                const io::AddToken value = at(const_cast<RunConfig&>(config));
                return value == kAuto ? "auto" : value == kAlways ? "true" : "false";
              },
          .type = "word",
          .allowed = "auto | true | false"};
}

template <class At>
ConfigKey string(std::string name, std::string help, At at) {
  return {
      .name = std::move(name),
      .help = std::move(help),
      .set = [=](RunConfig& config, Values values) { at(config) = only(values); },
      .show =
          [=](const RunConfig& config) { return yaml_quoted(at(const_cast<RunConfig&>(config))); },
      .type = "text"};
}

template <class At>
ConfigKey choice(std::string name, std::string help, std::vector<std::string> choices, At at) {
  return {.name = std::move(name),
          .help = std::move(help),
          .set =
              [=](RunConfig& config, Values values) {
                const std::string& value = only(values);
                ANABATIC_REQUIRE(std::find(choices.begin(), choices.end(), value) != choices.end(),
                                 "expected one of [{}], got '{}'", joined(choices, ", "), value);
                at(config) = value;
              },
          .show = [=](const RunConfig& config) { return at(const_cast<RunConfig&>(config)); },
          .type = "word",
          .allowed = joined(choices, " | ")};
}

template <class At>
ConfigKey strings(std::string name, std::string help, At at) {
  return {.name = std::move(name),
          .help = std::move(help),
          .is_list = true,
          .set = [=](RunConfig& config,
                     Values values) { at(config).assign(values.begin(), values.end()); },
          .show =
              [=](const RunConfig& config) {
                return show_list(at(const_cast<RunConfig&>(config)), yaml_quoted);
              },
          .type = "list of text"};
}

}  // namespace anabatic::train
