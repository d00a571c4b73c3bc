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
  kParameter,    // whole, in the dtype that is trained
  kUpper,        // the upper 16 bits of an f32 parameter, which are its bf16 value
  kLower,        // the lower 16 bits of that parameter
  kFirstMoment,  // of AdamW
  kSecondMoment,
  kPreviousNorm,           // gradient norm of the previous step, for the whole model
  kGradient,               // from its first write to the update
  kSquares,                // the sum of squares of a gradient
  kCopy,                   // a bf16 copy of a parameter
  kRowMajorCopy,           // row-major copy of a parameter that is stored in panels
  kPacking,                // the packed layout of a parameter, for products of the forward
  kPackingTransposed,      // the same for products of input gradients
  kCache,                  // keys or values for generation
  kLeafSum,                // a gradient's sum over leaves of a step, until the update
  kMask,                   // which elements of a sparse parameter are present
  kSparseIndex,            // where these lie in it, for products of the forward
  kSparseIndexTransposed,  // the same for products of input gradients
  kSparseValues,           // these elements, in the order in which such a product reads them
  kSparseValuesTransposed
};

ANABATIC_API std::string_view to_string(
    StateRole role);  // "parameter", "first_moment", "packing_transposed"

// A state with its name in a checkpoint. Moments that are kept in 8 bits cannot be read through
// Session::read, which throws Unsupported. Their scales are not listed as states.
struct StateInfo {
  std::string name;  // "layers.0.experts.gate.weight", "first_moment.layers.0.experts.gate.weight"
  StateRole role = StateRole::kParameter;
  std::string parameter;  // the parameter that it belongs to; of a parameter, its own name
  std::string dtype;      // of its elements in files: "f32", "bf16", "u8"
  std::vector<std::int64_t> shape;  // weights are [out, in], stacks of experts [expert, out, in]
};

}  // namespace anabatic
