// SPDX-License-Identifier: Apache-2.0
// All that a kernel may look at to tell whether it supports an op, and how much workspace it needs.
// It knows no graph.
#pragma once
#include <span>

#include "base/name.h"
#include "spec/attributes.h"
#include "spec/device_spec.h"
#include "tensor/tensor_type.h"

namespace anabatic::spec {

struct Problem {
  Name op;
  const Attributes* attributes;
  std::span<const TensorType> inputs, outputs;
  const DeviceSpec* device;
  // Whether a call may add to outputs that its op can add to; false: every call assigns.
  bool may_add = true;
};

}  // namespace anabatic::spec
