// SPDX-License-Identifier: Apache-2.0
#include "train/config/sparsity_keys.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/text.h"
#include "train/config/config_key.h"

namespace anabatic::train {
namespace {

using spec::SparseUnits;
using spec::SparsityPattern;

constexpr const char* kSparsityForm =
    "{units: [experts.down], pattern: block32, density: 0.25, schedule: {begin: 200, end: 2000, "
    "every: 50}}";
constexpr double kTwoOfFourDensity = 0.5;

using Readers = std::map<std::string, std::function<void(const YAML::Node&)>, std::less<>>;

// Calls the reader of each key of a map, once.
void read_map(const YAML::Node& map, std::string_view name, const Readers& readers) {
  std::vector<std::string> known, seen;
  for (const auto& [key, read] : readers) known.push_back(key);
  for (const auto& entry : map) {
    const auto key = entry.first.as<std::string>();
    const auto reader = readers.find(key);
    if (reader == readers.end()) {
      const auto nearest = nearest_word(key, known);
      throw InvalidArgument(fmt::format("{}: unknown key '{}'{}; expected {}", name, key,
                                        nearest ? fmt::format(", did you mean {}?", *nearest) : "",
                                        joined(known, ", ")));
    }
    ANABATIC_REQUIRE(std::ranges::find(seen, key) == seen.end(), "{}: '{}' is given twice", name,
                     key);
    seen.push_back(key);
    reader->second(entry.second);
  }
}

std::string scalar_of(const YAML::Node& node, const char* key) {
  ANABATIC_REQUIRE(node.IsScalar(), "{}: expected one value, got a list or a map", key);
  return node.Scalar();
}

template <class T>
T number_of(const YAML::Node& node, const char* key, const char* kind) {
  const std::string text = scalar_of(node, key);
  try {
    return parse_number<T>(text, kind);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", key, error.what()));
  }
}

double share_of(const YAML::Node& node, const char* key) {
  const auto share = number_of<double>(node, key, "a number in (0, 1]");
  ANABATIC_REQUIRE(share > 0 && share <= 1, "{}: expected a number in (0, 1], got {}{}", key, share,
                   share > 1 ? "; the nearest is 1" : "");
  return share;
}

SparsityPattern pattern_of(const YAML::Node& node) {
  const std::string word = scalar_of(node, "pattern");
  if (const auto pattern = spec::sparsity_pattern_from_string(word)) return *pattern;
  std::vector<std::string> words;
  for (const SparsityPattern pattern : spec::kSparsityPatterns)
    words.emplace_back(to_string(pattern));
  const auto nearest = nearest_word(word, words);
  throw InvalidArgument(fmt::format("pattern: expected one of {}, got '{}'{}", joined(words, ", "),
                                    word,
                                    nearest ? fmt::format("; did you mean {}?", *nearest) : ""));
}

std::vector<std::string> units_of(const YAML::Node& node) {
  std::vector<std::string> units;
  if (node.IsScalar()) units.push_back(node.Scalar());
  if (node.IsSequence())
    for (const YAML::Node& unit : node) units.push_back(scalar_of(unit, "units"));
  ANABATIC_REQUIRE(!units.empty(), "units: expected units such as [experts.down], got none");
  return units;
}

spec::SparsitySchedule schedule_of(const YAML::Node& node) {
  ANABATIC_REQUIRE(node.IsMap(), "schedule: expected {}, got no map",
                   "{begin: 200, end: 2000, every: 50}");
  spec::SparsitySchedule schedule;
  bool has_end = false;
  const auto step = [](std::int64_t& field, const char* key) {
    return [&field, key](const YAML::Node& value) {
      field = number_of<std::int64_t>(value, key, "an integer");
      ANABATIC_REQUIRE(field >= 1, "{}: expected an integer >= 1, got {}; the nearest is 1", key,
                       field);
    };
  };
  const auto read_end = step(schedule.end, "schedule.end");
  read_map(node, "schedule",
           {{"begin", step(schedule.begin, "schedule.begin")},
            {"end",
             [&](const YAML::Node& value) {
               read_end(value);
               has_end = true;
             }},
            {"every", step(schedule.every, "schedule.every")}});
  if (!has_end) schedule.end = schedule.begin;
  ANABATIC_REQUIRE(schedule.begin <= schedule.end,
                   "schedule: expected begin <= end, got begin {} and end {}; the nearest end is "
                   "{}",
                   schedule.begin, schedule.end, schedule.begin);
  return schedule;
}

SparseUnits parse_sparse_units(const std::string& text) {
  YAML::Node node;
  try {
    node = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    throw InvalidArgument(
        fmt::format("expected {}, got '{}': {}", kSparsityForm, text, error.what()));
  }
  ANABATIC_REQUIRE(node.IsMap(), "expected {}, got '{}'", kSparsityForm, text);
  SparseUnits entry;
  bool has_pattern = false, has_density = false;
  read_map(node, "an entry",
           {{"units", [&](const YAML::Node& value) { entry.units = units_of(value); }},
            {"pattern",
             [&](const YAML::Node& value) {
               entry.pattern = pattern_of(value);
               has_pattern = true;
             }},
            {"density",
             [&](const YAML::Node& value) {
               entry.density = share_of(value, "density");
               has_density = true;
             }},
            {"schedule", [&](const YAML::Node& value) { entry.schedule = schedule_of(value); }},
            {"threshold",
             [&](const YAML::Node& value) {
               if (scalar_of(value, "threshold") != "auto")
                 entry.threshold = share_of(value, "threshold");
             }},
            {"transposable", [&](const YAML::Node& value) {
               const std::string word = scalar_of(value, "transposable");
               const auto flag = parse_boolean(word);
               ANABATIC_REQUIRE(flag.has_value(), "transposable: expected true or false, got '{}'",
                                word);
               entry.is_transposable = *flag;
             }}});
  ANABATIC_REQUIRE(!entry.units.empty(), "units: expected units such as [experts.down], got none");
  ANABATIC_REQUIRE(has_pattern,
                   "pattern: expected block32, block16, 2:4 or unstructured, got none");
  if (entry.pattern == SparsityPattern::kTwoOfFour) {
    if (!has_density) entry.density = kTwoOfFourDensity;
    ANABATIC_REQUIRE(entry.density == kTwoOfFourDensity,
                     "density: expected 0.5 with pattern: 2:4, got {}", entry.density);
  }
  ANABATIC_REQUIRE(has_density || entry.pattern == SparsityPattern::kTwoOfFour,
                   "density: expected a number in (0, 1], got none");
  ANABATIC_REQUIRE(!entry.is_transposable || entry.pattern == SparsityPattern::kTwoOfFour,
                   "transposable: expected pattern: 2:4 with it, got {}", to_string(entry.pattern));
  return entry;
}

std::string show_sparse_units(const SparseUnits& entry) {
  std::string out = fmt::format(
      "{{units: {}, pattern: \"{}\", density: {}, schedule: {{begin: {}, end: {}, "
      "every: {}}}, threshold: {}",
      show_list(entry.units, yaml_quoted), to_string(entry.pattern), show_double(entry.density),
      entry.schedule.begin, entry.schedule.end, entry.schedule.every,
      entry.threshold ? show_double(*entry.threshold) : "auto");
  if (entry.is_transposable) out += ", transposable: true";
  return out + "}";
}

}  // namespace

void add_sparsity_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(
      {.name = "sparsity.weights",
       .help =
           "Weights that become sparse in training: {units, pattern, density, schedule: {begin, "
           "end, every}, threshold, transposable}. Patterns are block32, block16, 2:4, which may "
           "be "
           "transposable, and unstructured. The density falls from 1 in steps begin to end. "
           "threshold is the share of zeroes from which products take a sparse kernel; auto goes "
           "by "
           "predicted times. A list under `sparsity` itself is the same key.",
       .is_list = true,
       .set =
           [](RunConfig& config, Values values) {
             std::vector<SparseUnits> weights;
             for (const std::string& text : values) weights.push_back(parse_sparse_units(text));
             config.sparsity.weights = std::move(weights);
           },
       .show =
           [](const RunConfig& config) {
             return show_list(config.sparsity.weights, show_sparse_units);
           },
       .takes_maps = true,
       .type = "list of text",
       .allowed = "{units: [UNIT], pattern: WORD, density: D, ...}"});
}

void add_sparsity_problems(const RunConfig& config, std::vector<std::string>& problems) {
  if (config.sparsity.weights.empty()) return;
  for (const SparseUnits& entry : config.sparsity.weights)
    if (entry.schedule.end > config.train.steps)
      problems.push_back(
          fmt::format("sparsity.weights: expected schedule.end of '{}' to be at most train.steps = "
                      "{}, got {}",
                      joined(entry.units, ", "), config.train.steps, entry.schedule.end));
  const auto refuse = [&](bool is_there, const char* key, const char* expected, const auto& got) {
    if (is_there)
      problems.push_back(
          fmt::format("{}: expected {} with sparsity.weights, got {}", key, expected, got));
  };
  refuse(trains_adapter(config), "lora.targets",
         "none: the weights under an adapter are not trained, so they are not pruned,",
         joined(config.lora.targets, ", "));
  refuse(config.parallel.local_ranks > 1, "parallel.local_ranks",
         "1: masks are not shared by ranks,", config.parallel.local_ranks);
  refuse(config.parallel.world > 1, "parallel.world", "auto or 1: masks are not shared by ranks,",
         config.parallel.world);
}

spec::SparsityOptions sparsity_options(const RunConfig& config) {
  return {config.sparsity.weights, config.sparsity.is_final};
}

bool has_final_masks(const RunConfig& config, std::int64_t step) {
  const auto& weights = config.sparsity.weights;
  return !weights.empty() && std::ranges::all_of(weights, [&](const SparseUnits& entry) {
    return step >= entry.schedule.end;
  });
}

}  // namespace anabatic::train
