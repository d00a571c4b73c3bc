// SPDX-License-Identifier: Apache-2.0
// A state of training: its role, the parameter that it belongs to, and the rows that it holds.
// Graph, plan, runtime and files read these; names are for people.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "anabatic/state.h"
#include "base/name.h"

namespace anabatic::spec {

using anabatic::StateRole;

inline constexpr std::array kStateRoles{StateRole::kParameter,
                                        StateRole::kUpper,
                                        StateRole::kLower,
                                        StateRole::kFirstMoment,
                                        StateRole::kSecondMoment,
                                        StateRole::kPreviousNorm,
                                        StateRole::kGradient,
                                        StateRole::kSquares,
                                        StateRole::kCopy,
                                        StateRole::kRowMajorCopy,
                                        StateRole::kPacking,
                                        StateRole::kPackingTransposed,
                                        StateRole::kCache,
                                        StateRole::kLeafSum,
                                        StateRole::kMask,
                                        StateRole::kSparseIndex,
                                        StateRole::kSparseIndexTransposed,
                                        StateRole::kSparseValues,
                                        StateRole::kSparseValuesTransposed};
// How long states of a role live, and which files hold them.
enum class StateKind : std::uint8_t {
  kParameter,  // trained, saved and exported
  kOptimizer,  // moments and lower bits: saved, not exported
  kGradient,   // within one step; never saved
  kDerived,    // copies and packings: computed from the owner, never saved
  kCache,      // within one generation; never saved
  kSum,        // of gradients: within one step, with memory of its own; never saved
  kMask        // which elements of the owner are present: saved, not exported
};
StateKind kind_of(StateRole role);
inline bool is_saved(StateKind kind) {
  return kind == StateKind::kParameter || kind == StateKind::kOptimizer || kind == StateKind::kMask;
}
// Whether states of the role belong to a parameter, their owner.
bool has_owner(StateRole role);
// Whether they follow the pattern of a sparse parameter: its mask and its layout.
inline bool has_pattern(StateRole role) { return role >= StateRole::kMask; }

// Rows [first, first + count) of `total`: all dimensions but the last, flattened. total 0: all.
struct Rows {
  std::int64_t first = 0, count = 0, total = 0;
  bool is_whole() const { return count == total; }
  bool operator==(const Rows&) const = default;
};

struct StatePart {
  StateRole role = StateRole::kParameter;
  Name owner{};  // the parameter that it belongs to; empty for a role without one
  Rows rows{};   // of the owner's shape; of a parameter: of the one that ranks share
  StateKind kind() const { return kind_of(role); }
  bool operator==(const StatePart&) const = default;
};

// The name of a whole state for people and files: "first_moment.w" for a first moment of "w". For
// roles that have an owner.
std::string state_name(StateRole role, std::string_view owner);
// That of its scales in files, where it is quantised: "first_moment_scales.w".
std::string scales_name(StateRole role, std::string_view owner);

// The values of a state before the first step. All states but parameters begin with zeroes.
struct Init {
  enum class Rule : std::uint8_t { kZeros, kOnes, kNormal, kUniform };
  Rule rule = Rule::kZeros;
  // kNormal: normal(0, deviation); kUniform: within ±deviation; kOnes: the factor, 0 for 1.
  double deviation = 0;
  std::int64_t zero_row = -1;  // a row of zeroes, such as an embedding's padding token; -1: none
  bool operator==(const Init&) const = default;
};
std::string_view to_string(Init::Rule rule);  // "zeros", "ones", "normal", ...

}  // namespace anabatic::spec
