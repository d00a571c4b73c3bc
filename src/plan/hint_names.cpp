// SPDX-License-Identifier: Apache-2.0
#include "plan/hint_names.h"

#include <algorithm>
#include <charconv>

#include "spec/attributes.h"

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

std::optional<std::int64_t> to_expert(std::string_view digits) {
  std::int32_t number = 0;
  const char* const end = digits.data() + digits.size();
  const auto [read, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc() || read != end || number < 0) return {};
  return number;
}

// Reads "7" or "96-127".
std::optional<Experts> to_experts(std::string_view text) {
  const std::size_t dash = text.find('-');
  const auto first = to_expert(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : to_expert(text.substr(dash + 1));
  if (!first || !last || *last < *first) return {};
  return Experts{*first, *last + 1};
}

Experts experts_of(const TensorType& parameter) {
  return {0, parameter.ndim() == 3 ? parameter.dim(0) : 0};
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

Experts overlap(Experts a, Experts b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

ParameterHint::ParameterHint(std::string_view text) : name_(text) {
  constexpr std::string_view kSegment = "experts.";
  const std::size_t at = text.find(kSegment);
  if (at == std::string_view::npos || (at > 0 && text[at - 1] != '.')) return;
  const std::string_view rest = text.substr(at + kSegment.size());
  const std::size_t numbers = std::min(rest.find('.'), rest.size());
  experts_ = to_experts(rest.substr(0, numbers));
  if (experts_)
    name_ = std::string(text.substr(0, at + kSegment.size() - 1)).append(rest.substr(numbers));
}

bool ParameterHint::names(std::string_view parameter, Experts experts) const {
  return is_named(parameter, name_) && (!experts_ || !overlap(*experts_, experts).empty());
}

std::vector<ParameterHint> parameter_hints(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

bool any_names(const std::vector<ParameterHint>& hints, std::string_view parameter,
               Experts experts) {
  return std::any_of(hints.begin(), hints.end(),
                     [&](const ParameterHint& hint) { return hint.names(parameter, experts); });
}

bool all_are_named(const std::vector<ParameterHint>& hints, std::string_view parameter,
                   Experts experts) {
  if (experts.empty()) return any_names(hints, parameter, experts);
  for (std::int64_t expert = experts.begin; expert < experts.end; ++expert)
    if (!any_names(hints, parameter, {expert, expert + 1})) return false;
  return true;
}

Name parameter_of(const ir::State& state) {
  return state.owner != Name{} ? state.owner : state.name;
}

std::map<std::string, Experts, std::less<>> experts_of_parameters(const ir::Graph& graph) {
  std::map<std::string, Experts, std::less<>> result;
  for (const ir::State& state : graph.states)
    if (state.kind() == ir::StateKind::kParameter)
      result[std::string(text(state.name))] = experts_of(graph.value(state.before).type);
  return result;
}

std::map<ir::ValueId, Experts> experts_of_states(const ir::Graph& graph) {
  std::map<Name, const TensorType*> of_parameters;
  for (const ir::State& state : graph.states)
    if (state.kind() == ir::StateKind::kParameter)
      of_parameters[state.name] = &graph.value(state.before).type;
  std::map<ir::ValueId, Experts> result;
  for (const ir::State& state : graph.states) {
    if (state.kind() != ir::StateKind::kParameter && state.kind() != ir::StateKind::kOptimizer)
      continue;
    const auto found = of_parameters.find(parameter_of(state));
    Experts& experts = result[state.before];
    if (found == of_parameters.end()) continue;
    experts = experts_of(*found->second);
    if (state.rows.is_whole() || experts.empty()) continue;
    const std::int64_t first = state.rows.first / found->second->dim(1);
    experts = {first, first + graph.value(state.before).type.dim(0)};
  }
  return result;
}

}  // namespace anabatic::plan
