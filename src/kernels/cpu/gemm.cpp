// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm.h"

namespace anabatic::kernels::cpu {

bool usable(const GemmEngine* engine, const spec::DeviceSpec& device) {
  return engine != nullptr && (engine->isa == nullptr || device.has(engine->isa));
}

}  // namespace anabatic::kernels::cpu
