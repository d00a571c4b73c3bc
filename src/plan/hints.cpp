// SPDX-License-Identifier: Apache-2.0
#include "plan/hints.h"

#include <algorithm>

#include "analysis/rebuild.h"
#include "base/error.h"
#include "base/text.h"

namespace anabatic::plan {
namespace {

bool is_at_or_below(std::string_view key, std::string_view hint) {
  constexpr std::string_view kAllThree = "qkv";
  if (key == hint || (key.starts_with(hint) && key[hint.size()] == '.')) return true;
  if (!hint.ends_with(kAllThree)) return false;
  const std::string_view folder = hint.substr(0, hint.size() - kAllThree.size());
  if ((!folder.empty() && folder.back() != '.') || !key.starts_with(folder)) return false;
  const std::string_view rest = key.substr(folder.size());
  return !rest.empty() && kAllThree.find(rest[0]) != std::string_view::npos &&
         (rest.size() == 1 || rest[1] == '.' || rest[1] == '_');
}

bool is_named_by_any(std::string_view key, const std::vector<std::string>& hints) {
  return std::any_of(hints.begin(), hints.end(),
                     [&](const std::string& hint) { return is_named(key, hint); });
}

// "first_moment.layers.0.mlp.up.weight" is of layers.0.mlp.up.weight; whole where it is of none.
std::string_view parameter_of(std::string_view state) {
  for (const std::string_view prefix :
       {"first_moment.", "second_moment.", "first_moment_scales.", "second_moment_scales.", "low."})
    if (state.starts_with(prefix)) return state.substr(prefix.size());
  return state;
}

std::vector<std::string> parameters(const ir::Graph& graph) {
  std::vector<std::string> names;
  for (const ir::State& state : graph.states)
    if (state.kind == ir::StateKind::kParameter) names.emplace_back(text(state.name));
  return names;
}

// "layers.1.experts" of layers.1.experts.7 or layers.1.experts.7.up.weight; empty where no single
// expert is meant.
std::string_view stack_of(std::string_view hint) {
  constexpr std::string_view kExperts = "experts.";
  const std::size_t at = hint.find(kExperts);
  if (at == std::string_view::npos || (at > 0 && hint[at - 1] != '.')) return {};
  const std::string_view expert = hint.substr(at + kExperts.size());
  const std::string_view number = expert.substr(0, expert.find('.'));
  const bool is_number = !number.empty() && std::all_of(number.begin(), number.end(), [](char c) {
    return '0' <= c && c <= '9';
  });
  return is_number ? hint.substr(0, at + kExperts.size() - 1) : std::string_view();
}

[[noreturn]] void refuse_unknown(const char* key, const char* expected, const std::string& hint,
                                 const std::vector<std::string>& names) {
  const std::string_view stack = stack_of(hint);
  if (!stack.empty() && std::any_of(names.begin(), names.end(),
                                    [&](const std::string& name) { return is_named(name, stack); }))
    throw InvalidArgument(
        fmt::format("[memory] {}: expected a whole stack of experts such as '{}', got the single "
                    "expert '{}'; an update moves every expert of a stack, chosen by tokens or not",
                    key, stack, hint));
  const auto nearest = nearest_word(hint, names);
  throw InvalidArgument(fmt::format("[memory] {}: expected {} such as {}, got '{}'{}", key,
                                    expected, names.empty() ? "none in this model" : names.front(),
                                    hint,
                                    nearest ? fmt::format("; did you mean {}?", *nearest) : ""));
}

}  // namespace

std::string_view without_layer(std::string_view key) {
  constexpr std::string_view kLayers = "layers.";
  if (!key.starts_with(kLayers)) return key;
  const std::size_t dot = key.find('.', kLayers.size());
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

bool is_named(std::string_view key, std::string_view hint) {
  return is_at_or_below(key, hint) || is_at_or_below(without_layer(key), hint);
}

bool may_go_to_disk(const DiskOptions& options, std::string_view state) {
  const std::string_view parameter = parameter_of(state);
  if (is_named_by_any(parameter, options.hot)) return false;
  return !options.only_cold || is_named_by_any(parameter, options.cold);
}

void require_obeyed(const ir::Graph& graph, const Plan& plan, const DiskOptions& options,
                    bool offloads) {
  if (options.hot.empty() && options.cold.empty()) return;
  const std::vector<std::string> names = parameters(graph);
  std::vector<std::string> saved, offloaded;
  const analysis::Rebuilder rebuilder(graph);
  for (const analysis::SavedValue& value : rebuilder.saved()) {
    saved.push_back(value.key);
    if (std::any_of(plan.offloads.begin(), plan.offloads.end(), [&](const Offload& offload) {
          return graph.node(offload.reload).inputs[0] == value.value;
        }))
      offloaded.push_back(value.key);
  }
  const auto names_one = [](const std::string& hint, const std::vector<std::string>& keys) {
    return std::any_of(keys.begin(), keys.end(),
                       [&](const std::string& key) { return is_named(key, hint); });
  };
  std::vector<std::string> known = names;
  known.insert(known.end(), saved.begin(), saved.end());
  for (const std::string& hint : options.hot)
    if (!names_one(hint, known))
      refuse_unknown("memory.hot", "a segment, a parameter or a value that the backward reads",
                     hint, known);
  for (const std::string& hint : options.cold) {
    const bool is_offloaded = names_one(hint, offloaded);
    if (!is_offloaded && !names_one(hint, names)) {
      ANABATIC_REQUIRE(
          !names_one(hint, saved), "[memory] memory.cold: expected {}, got the activation '{}'; {}",
          offloads ? "values that are large enough, and made in the forward"
                   : "parameters, whose moments can go to disk",
          hint,
          offloads ? "it stays in memory" : "memory.activations: disk lets activations go there");
      refuse_unknown("memory.cold", "a segment or a parameter", hint, names);
    }
    for (const std::string& name : names)
      ANABATIC_REQUIRE(!is_named(name, hint) || !is_named_by_any(name, options.hot),
                       "[memory] memory.cold: expected hints that agree, got '{}' against another "
                       "hint, memory.hot, for {}",
                       hint, name);
    const bool is_obeyed =
        is_offloaded ||
        std::any_of(plan.windows.begin(), plan.windows.end(), [&](const SwapWindow& window) {
          const auto& buffer = plan.buffers[static_cast<std::size_t>(window.buffer)];
          return buffer.state >= 0 &&
                 is_named(
                     parameter_of(text(graph.states[static_cast<std::size_t>(buffer.state)].name)),
                     hint);
        });
    ANABATIC_REQUIRE(is_obeyed,
                     "[memory] memory.cold: expected moments of at least {}, got smaller ones or "
                     "none for '{}': they stay in memory",
                     format_bytes(options.min_bytes), hint);
  }
}

}  // namespace anabatic::plan
