// SPDX-License-Identifier: Apache-2.0
// The calls of the engine's ops that a kernel of a plugin is checked with.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/check/cases.h"
#include "spec/attributes.h"

namespace anabatic::plugin::check {

// What the integers of an operand are, beyond an OperandSpec's limit.
enum class Fill : std::uint8_t {
  kPlain,
  kOffsets,      // of groups of rows, from 0 to all of them; one group has none
  kPermutation,  // of its own places
  kRowEnds,      // 1, 2, 3, ...
  kExperts       // each row has distinct ones below 8
};

struct KernelForm {
  std::vector<OperandSpec> inputs{};
  std::vector<Fill> fills{};      // one an input
  spec::Attributes attributes{};  // "$F": the size of the dimension F; "$D": the dtype
};

// Forms of the op, as models have them; empty where no kernel of it can be checked.
std::vector<KernelForm> forms_of(std::string_view op);

// With the sizes of a case.
spec::Attributes attributes_of(const KernelForm& form, const Case& one);
// As random_inputs gives them, integers by their fills.
std::optional<Operands> inputs_of(const KernelForm& form, const Case& one, std::uint64_t seed);

}  // namespace anabatic::plugin::check
