// SPDX-License-Identifier: Apache-2.0
// A config.json as one family reads it, whatever its model_type says.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/family.h"

namespace anabatic::model {

// The document that load_config reads. Errors as those of config_text.
nlohmann::json read_config_json(const std::filesystem::path& directory_or_file);

// By model_type, else by a class that `architectures` names; null where no family reads it.
const Family* family_of(const nlohmann::json& json);

struct ConfigReading {
  ConfigReader reader;  // refers to the document, and holds the problems
  ModelConfig config{};
  std::vector<std::string> ignored{};  // fields that the family does not know
};
ConfigReading read_config_as(const Family& family, const nlohmann::json& json);

}  // namespace anabatic::model
