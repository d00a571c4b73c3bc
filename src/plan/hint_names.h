// SPDX-License-Identifier: Apache-2.0
// The meaning of names in memory.recompute, keep, hot and cold.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace anabatic::plan {

// The key without "layers.N.", if it begins so.
std::string_view without_layer(std::string_view key);

// Whether a hint names a value's key (analysis/rebuild.h) or a parameter. A hint is
// "layers.3.experts.activation", or that without its layer, or the segment's name alone.
// "attention.qkv" is its q, k and v, and what is computed from each (q_rope, q_norm).
bool is_named(std::string_view key, std::string_view hint);

// Experts [begin, end) of a stack; empty for a parameter that is no stack.
struct Experts {
  std::int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
};
// The experts in both.
Experts overlap(Experts a, Experts b);

// A hint for parameters. Numbers after the segment select experts of a stack:
// "layers.1.experts.7", "experts.96-127.up" (the last one included).
class ParameterHint {
 public:
  explicit ParameterHint(std::string_view text);

  // The text without numbers of experts: "experts.up".
  const std::string& name() const { return name_; }
  const std::optional<Experts>& experts() const { return experts_; }
  // Whether it names any of these experts of the parameter, or the parameter if it has none.
  bool names(std::string_view parameter, Experts experts) const;

 private:
  std::string name_;
  std::optional<Experts> experts_;
};

std::vector<ParameterHint> parameter_hints(const std::vector<std::string>& texts);
bool any_names(const std::vector<ParameterHint>& hints, std::string_view parameter,
               Experts experts);
// Whether each of these experts is named by one of the hints.
bool all_are_named(const std::vector<ParameterHint>& hints, std::string_view parameter,
                   Experts experts);

// The parameter that a state belongs to: its owner, or itself.
Name parameter_of(const ir::State& state);

// The experts of each parameter, [0, E) for a stack.
std::map<std::string, Experts, std::less<>> experts_of_parameters(const ir::Graph& graph);

// The experts whose elements each parameter or optimizer state holds, by State::before: all of its
// parameter's, or those of a slice (passes/slice_optimizer.h).
std::map<ir::ValueId, Experts> experts_of_states(const ir::Graph& graph);

}  // namespace anabatic::plan
