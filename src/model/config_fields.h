// SPDX-License-Identifier: Apache-2.0
// Checks fields of a config.json that nothing has read.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/family.h"

namespace anabatic::model {

// A field that changes the maths in some model must have its neutral value, with which it changes
// nothing in this one. Otherwise it is noted as unsupported. Fields that never change the maths
// pass. Returns any other field that is not null.
std::vector<std::string> check_unread_fields(ConfigReader& reader, const nlohmann::json& json,
                                             const CommonFields& fields, const ModelConfig& config);

}  // namespace anabatic::model
