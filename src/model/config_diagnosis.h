// SPDX-License-Identifier: Apache-2.0
// Which fields of a config.json keep a model from being read, and which are ignored.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace anabatic::model {

struct ConfigDiagnosis {
  std::string model_type;  // as the file says; "" where it says nothing
  bool is_known = false;   // a family of that name, or of the class that the file names, reads it
  std::string family;      // that one, else the nearest; "" where none is near
  std::vector<std::string> problems;  // "KEY: problem" of fields that this family refuses
  // Fields that it does not know, or that no family knows: they may change the maths.
  std::vector<std::string> unknown;
};

// The nearest family refuses and lacks the fewest fields. Of equal ones it is the one with the most
// similar name, then the one that assumes the fewest fields that the file does not have. None is
// near if most fields stand in the way.
ConfigDiagnosis diagnose_config(const std::filesystem::path& directory_or_file);

}  // namespace anabatic::model
