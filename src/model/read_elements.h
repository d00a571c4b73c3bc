// SPDX-License-Identifier: Apache-2.0
// A part of a file tensor that is not transposed, read from states.
#pragma once
#include <cstdint>
#include <span>

#include "model/weights.h"

namespace anabatic::model {

// Elements [first, first + values.size()) as files have them.
void read_elements(const FileTensor& tensor, std::int64_t first, std::span<float> values,
                   const StateReader& read);

}  // namespace anabatic::model
