// SPDX-License-Identifier: Apache-2.0
// The definition of int8 products of a head with its loss (ARCHITECTURE.md, "int8 products").
#pragma once
#include "kernels/kernel.h"

namespace anabatic::kernels::ref {

// `head_loss_with_gradient` and `head_loss_with_input_gradient` with the attribute `fallback`.
void int8_head_loss(const Arguments& args);

}  // namespace anabatic::kernels::ref
