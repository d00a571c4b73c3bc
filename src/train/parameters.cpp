// SPDX-License-Identifier: Apache-2.0
#include "train/parameters.h"

#include "base/error.h"

namespace anabatic::train {

std::span<float> state_values(runtime::StateStore& store, Name state) {
  const TensorView view = store.find(state);
  ANABATIC_CHECK(view.type->dtype == DType::kFloat32 && view.type->layout == kRowMajor,
                 "[state] expected f32, got {} for {}", to_string(*view.type), text(state));
  return {view.as<float>(), static_cast<std::size_t>(view.type->num_elements())};
}

}  // namespace anabatic::train
