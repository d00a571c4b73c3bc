// SPDX-License-Identifier: Apache-2.0
#include "plan/hints.h"

#include <algorithm>
#include <vector>

#include "analysis/rebuild.h"
#include "base/error.h"
#include "base/text.h"

namespace anabatic::plan {
namespace {

[[noreturn]] void refuse_unknown(const char* key, const char* expected, const std::string& hint,
                                 const std::vector<std::string>& names) {
  const auto nearest = nearest_word(hint, names);
  throw InvalidArgument(fmt::format("[memory] {}: expected {} such as {}, got '{}'{}", key,
                                    expected, names.empty() ? "none in this model" : names.front(),
                                    hint,
                                    nearest ? fmt::format("; did you mean {}?", *nearest) : ""));
}

bool is_one_named(const std::vector<std::string>& keys, const std::string& hint) {
  return std::any_of(keys.begin(), keys.end(),
                     [&](const std::string& key) { return is_named(key, hint); });
}

// The hints of one step; each is refused if it is not obeyed.
class Refusals {
 public:
  Refusals(const ir::Graph& graph, const Plan& plan, const DiskOptions& options, bool offloads)
      : graph_(graph),
        plan_(plan),
        options_(options),
        offloads_(offloads),
        parameters_(experts_of_parameters(graph)),
        hot_(parameter_hints(options.hot)) {
    for (const auto& [name, experts] : parameters_) names_.push_back(name);
    const analysis::Rebuilder rebuilder(graph);
    for (const analysis::SavedValue& value : rebuilder.saved()) {
      saved_.push_back(value.key);
      if (std::any_of(plan.offloads.begin(), plan.offloads.end(), [&](const Offload& offload) {
            return graph.node(offload.reload).inputs[0] == value.value;
          }))
        offloaded_.push_back(value.key);
    }
  }

  void require_hot(const std::string& text) const {
    const ParameterHint hint(text);
    require_experts("memory.hot", text, hint);
    if (names_parameter(hint) || (!hint.experts() && is_one_named(saved_, text))) return;
    std::vector<std::string> known = names_;
    known.insert(known.end(), saved_.begin(), saved_.end());
    refuse_unknown("memory.hot", "a segment, a parameter or a value that the backward reads", text,
                   known);
  }

  void require_cold(const std::string& text) const {
    const ParameterHint hint(text);
    require_experts("memory.cold", text, hint);
    const bool is_offloaded = is_one_named(offloaded_, text);
    if (!is_offloaded && !names_parameter(hint)) {
      ANABATIC_REQUIRE(
          !is_one_named(saved_, text),
          "[memory] memory.cold: expected {}, got the activation '{}'; {}",
          offloads_ ? "values that are large enough, and made in the forward"
                    : "parameters, whose moments can go to disk",
          text,
          offloads_ ? "it stays in memory" : "memory.activations: disk lets activations go there");
      refuse_unknown("memory.cold", "a segment or a parameter", text, names_);
    }
    for (const auto& [name, experts] : parameters_)
      ANABATIC_REQUIRE(
          !hint.names(name, experts) ||
              !any_names(hot_, name, hint.experts() ? overlap(*hint.experts(), experts) : experts),
          "[memory] memory.cold: expected hints that agree, got '{}' against another hint, "
          "memory.hot, for {}",
          text, name);
    if (is_offloaded || has_moments_on_disk(hint)) return;
    ANABATIC_REQUIRE(
        !hint.experts(),
        "[memory] memory.cold: expected experts with moments of at least {} in fp32 or "
        "bf16, which the pass slice_optimizer cuts apart, got others for '{}': they stay in "
        "memory",
        format_bytes(options_.min_bytes), text);
    throw InvalidArgument(
        fmt::format("[memory] memory.cold: expected moments of at least {}, got smaller ones or "
                    "none for '{}': they stay in memory",
                    format_bytes(options_.min_bytes), text));
  }

 private:
  bool names_parameter(const ParameterHint& hint) const {
    return std::any_of(parameters_.begin(), parameters_.end(), [&](const auto& parameter) {
      return hint.names(parameter.first, parameter.second);
    });
  }

  void require_experts(const char* key, const std::string& text, const ParameterHint& hint) const {
    if (!hint.experts()) return;
    for (const auto& [name, experts] : parameters_)
      ANABATIC_REQUIRE(
          !is_named(name, hint.name()) || experts.empty() || hint.experts()->end <= experts.end,
          "[memory] {}: expected experts 0 to {} of {}, got '{}'", key, experts.end - 1, name,
          text);
  }

  bool has_moments_on_disk(const ParameterHint& hint) const {
    const std::map<ir::ValueId, Experts> experts = experts_of_states(graph_);
    return std::any_of(plan_.windows.begin(), plan_.windows.end(), [&](const SwapWindow& window) {
      const auto& buffer = plan_.buffers[static_cast<std::size_t>(window.buffer)];
      if (buffer.state < 0) return false;
      const ir::State& state = graph_.states[static_cast<std::size_t>(buffer.state)];
      return hint.names(text(parameter_of(state)), experts.at(state.before));
    });
  }

  const ir::Graph& graph_;
  const Plan& plan_;
  const DiskOptions& options_;
  const bool offloads_;
  const std::map<std::string, Experts, std::less<>> parameters_;
  const std::vector<ParameterHint> hot_;
  std::vector<std::string> names_{}, saved_{}, offloaded_{};  // of parameters, and values' keys
};

}  // namespace

bool may_go_to_disk(const DiskOptions& options, std::string_view parameter, Experts experts) {
  if (any_names(parameter_hints(options.hot), parameter, experts)) return false;
  return !options.only_cold || all_are_named(parameter_hints(options.cold), parameter, experts);
}

std::map<std::string, std::set<std::int64_t>, std::less<>> expert_cuts(const ir::Graph& forward,
                                                                       const DiskOptions& options) {
  std::map<std::string, std::set<std::int64_t>, std::less<>> cuts;
  for (const auto* hints : {&options.hot, &options.cold})
    for (const ParameterHint& hint : parameter_hints(*hints)) {
      if (!hint.experts()) continue;
      for (const auto& [name, experts] : experts_of_parameters(forward))
        if (hint.names(name, experts))
          cuts[name].insert({hint.experts()->begin, hint.experts()->end});
    }
  return cuts;
}

void require_obeyed(const ir::Graph& graph, const Plan& plan, const DiskOptions& options,
                    bool offloads) {
  if (options.hot.empty() && options.cold.empty()) return;
  const Refusals refusals(graph, plan, options, offloads);
  for (const std::string& hint : options.hot) refusals.require_hot(hint);
  for (const std::string& hint : options.cold) refusals.require_cold(hint);
}

}  // namespace anabatic::plan
