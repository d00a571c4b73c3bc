// SPDX-License-Identifier: Apache-2.0
// The key `model.replace`: operators of plugins in place of the model's.
#pragma once
#include "train/run_config.h"

namespace anabatic::train {

ConfigKey replace_key();

}  // namespace anabatic::train
