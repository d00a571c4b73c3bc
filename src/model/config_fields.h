// SPDX-License-Identifier: Apache-2.0
// What becomes of the fields of a config.json that nothing has read.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "model/family.h"

namespace anabatic::model {

// A field that changes the maths in some model must have its neutral value, at which `config` is
// computed as it is; otherwise it is noted as unsupported. Fields that never touch the maths pass;
// any other one that is not null is warned of by name.
void check_unread_fields(ConfigReader& reader, const nlohmann::json& json,
                         const CommonFields& fields, const ModelConfig& config);

}  // namespace anabatic::model
