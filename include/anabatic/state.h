// SPDX-License-Identifier: Apache-2.0
// The named tensors that outlive a training step: parameters, optimizer state, copies of weights.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "anabatic/export.h"

namespace anabatic {

enum class StateRole : std::uint8_t {
  kParameter,           // whole, in the dtype that it is trained in
  kUpper,               // the upper 16 bits of an f32 parameter, which are its bf16
  kLower,               // the 16 bits that kUpper lacks
  kFirstMoment,         // of AdamW, as kSecondMoment
  kSecondMoment,        //
  kFirstMomentScales,   // of an 8-bit moment's blocks, as kSecondMomentScales
  kSecondMomentScales,  //
  kPreviousNorm,        // of the step before's gradients; the whole model's
  kGradient,            // from the first write to the update
  kSquares,             // the sum of squares of a gradient
  kCopy,                // a bf16 copy of a parameter
  kRowMajorCopy,        // a row-major copy of a parameter that is held in panels
  kPacking,             // a parameter as the forward's products read it
  kPackingTransposed,   // as the products of input gradients read it
  kCache                // keys or values of generation
};

ANABATIC_API std::string_view to_string(
    StateRole role);  // "parameter", "first_moment", "packing_transposed"

// A state as a checkpoint names it.
struct StateInfo {
  std::string name;  // "layers.0.experts.gate.weight", "first_moment.layers.0.experts.gate.weight"
  StateRole role = StateRole::kParameter;
  std::string parameter;            // that it serves; a parameter's is its own name
  std::string dtype;                // of an element in files: "f32", "bf16", "u8"
  std::vector<std::int64_t> shape;  // weights are [out, in], stacks of experts [expert, out, in]
};

}  // namespace anabatic
